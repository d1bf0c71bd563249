"""Draw random statements: assignments, double assignments, and those that a rule must have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from fuzz.expressions import ExpressionGenerator, Known

LOCALS = {
    "tensors": ("x", "y", "z", "u"),
    "numbers": ("a", "b", "a2"),
    "reduced_numbers": ("d", "e"),
    "rows": ("h", "h2"),
    "columns": ("j", "j2"),
    "lefts": ("A",),
    "rights": ("B",),
    "thin_rows": ("H",),
    "thin_cols": ("J",),
    "wide_rows": ("D",),
    "wide_cols": ("I",),
    "ranks": ("Y",),
    "conditions": ("ok", "late_on"),
    "masks": ("big", "low"),
}
"""Names of a rule's local variables, by nature; a name always has the same nature."""

USES_OF_UNREAD = {
    "tensors": "({x} - {name})",
    "numbers": "({x} * (1 + {name}))",
    "reduced_numbers": "({x} / (1 + abs({name})))",
    "rows": "({x} + {name})",
    "columns": "({x} * {name})",
    "lefts": "({name} @ {x})",
    "rights": "({x} @ {name})",
    "thin_rows": "({name} @ (transpose({name}) @ {x}))",
    "thin_cols": "({x} @ {name} @ transpose({name}))",
    "wide_rows": "(transpose({name}) @ {name} @ {x})",
    "wide_cols": "({x} @ transpose({name}) @ {name})",
    "ranks": "({x} / (1 + norm({name})))",
    "masks": "where({name}, {x}, g)",
}
"""Forms in which the last statement reads a name that no other statement reads."""


@dataclass
class StatementGenerator:
    """A generator of the statements of a rule.

    `level` is a statement's indentation, and `depth` bounds how many branches are nested in it.
    """

    draw: ExpressionGenerator
    # symbol, nature (a list of `Known`), and the condition under which it exists
    states: Sequence[tuple[str, str, str]]
    poly: str = ""  # the coefficients of matrix ops, if the rule has any
    known_conditions: list[str] = field(default_factory=list)  # that hold at this point

    @property
    def known(self) -> Known:
        """Return the names that may be read here."""
        return self.draw.known

    def rule(self, num_statements: int) -> list[str]:
        """Return the whole rule: drawn statements, then those that the signature demands."""
        lines = [line for _ in range(num_statements) for line in self.statement(1, 3)]
        if self.poly:
            lines += self.matrix_op(1)
        for state in self.states:
            lines += self.missing_uses(state, "\n".join(lines))
        lines += self.param_update("\n".join(lines))
        return lines

    def missing_uses(self, state: tuple[str, str, str], text: str) -> list[str]:
        """Return statements that read and write a state, unless the text already does both."""
        symbol, nature, condition = state
        written = re.search(rf"^ *(\w+, )?{symbol}(, \w+)? =", text, re.M)
        read = re.search(rf"[=(].*\b{symbol}\b|(if|elif) .*\b{symbol}\b", text)
        if written and read:
            return []
        if not condition:
            return ["    " + self.mix_into(symbol, nature)]
        needs_axes = condition == "factored(p)"
        return [f"    if {condition}:", "        " + self.mix_into(symbol, nature, needs_axes)]

    def mix_into(self, symbol: str, nature: str, in_factored_branch: bool = False) -> str:
        """Return an assignment that mixes a new value into a state."""
        before = self.draw.has_axes
        self.draw.has_axes = in_factored_branch or before
        value = self.value(nature, 1)
        self.draw.has_axes = before
        return self.draw.pick(
            f"{symbol} = 0.5 * {symbol} + 0.25 * {value}",
            f"{symbol} = beta1 * {symbol} + (1 - beta1) * {value}",
            f"{symbol} = lerp({symbol}, {value}, 0.25)",
            f"{symbol} = {symbol} * beta2 + {value}",
        )

    def param_update(self, text: str) -> list[str]:
        """Return the parameter's update by the gradient and by names that nothing has read yet."""
        pick, lines = self.draw.pick, []
        x = self.draw.tensor(2)
        for nature, names in LOCALS.items():
            known = getattr(self.known, nature)
            for name in names:
                if name not in known or re.search(rf"[=(].*\b{name}\b|f .*\b{name}\b", text):
                    continue
                if self.draw.chance(0.2):
                    continue
                if nature == "conditions":
                    lines += [f"    if {name}:", f"        g = {self.draw.tensor(1)}"]
                else:
                    x = USES_OF_UNREAD[nature].format(x=x, name=name)
        if not re.search(r"[=(].*\bg\b", "\n".join([text, x, *lines])):
            x = f"({x} + g)"
        states = [s for s, n, condition in self.states if not condition and n == "numbers"]
        factor = f" * {pick(*states)}" if states and self.draw.chance(0.6) else ""
        last = pick(
            f"p = p - lr * {x}{factor}",
            f"p = p - lr * {x}{factor}",
            f"p = p - lr * {x}{factor}",
            f"p = p - lr * {x} / (sqrt(abs({self.draw.tensor(1)})) + 0.5){factor}",
            f"p = (1 - lr * 0.5) * p - {x}{factor}",
            f"p = (p - lr * {x}{factor}) % 1.5",
            f"p = {x}{factor}",
        )
        return [*lines, "    " + last]

    def statement(self, level: int, depth: int) -> list[str]:
        """Return one statement, or a branch with several."""
        indent = "    " * level
        kinds = ["tensor"] * 3 + ["state"] * 4 + ["number"] * 2
        kinds += ["pair", "condition or mask", "momentum"]
        kinds += ["branch"] * (2 if depth > 1 else depth > 0)
        kinds += ["reduced number"] * 2 * self.draw.has_reductions
        kinds += ["row", "column"] * self.draw.has_axes
        kinds += ["left", "right"] * (self.draw.has_axes and self.draw.has_matrices)
        kinds += ["thin"] * (3 * (self.draw.has_axes and self.draw.has_thin_matrices))
        kinds += ["conditional"] * any(condition for *_, condition in self.states)
        kinds += ["factored"] * (self.draw.has_reductions and not self.draw.has_axes and depth > 0)
        anywhere = level == 1 or self.draw.has_matrices
        kinds += ["matrix op"] * (bool(self.poly) and anywhere and self.draw.has_axes)
        kind = self.draw.pick(*kinds)
        if kind == "matrix op":
            return self.matrix_op(level)
        if kind in ("branch", "conditional", "factored"):
            return self.compound_statement(kind, level, depth)
        return [indent + line for line in self.simple_statement(kind)]

    def simple_statement(self, kind: str) -> list[str]:
        """Return one assignment of a random kind."""
        if kind == "pair":
            return self.double_assignment()
        if kind == "state":
            return self.state_assignment()
        if kind == "momentum":
            return self.momentum_update()
        if kind == "condition or mask":
            if self.draw.chance(0.5):
                return [self.assign_one_of("conditions", self.draw.condition(1))]
            return [self.assign_one_of("masks", self.draw.mask(1))]
        if kind == "thin":
            return [self.assign_local(self.draw.pick(*Known.THIN))]
        natures = {
            "tensor": "tensors",
            "number": "numbers",
            "reduced number": "reduced_numbers",
            "row": "rows",
        }
        natures |= {"left": "lefts", "right": "rights"}
        return [self.assign_local(natures.get(kind, "columns"))]

    def value(self, nature: str, depth: int = 2) -> str:
        """Return an expression of a nature."""
        if nature == "tensors":
            return self.draw.tensor(depth + 1)
        if nature == "numbers":
            return self.draw.number(depth)
        if nature == "reduced_numbers":
            return self.reduced_number()
        if nature in Known.THIN:
            draw_by_nature = {nature: getattr(self.draw, nature) for nature in Known.THIN[:4]}
            return draw_by_nature.get(nature, self.draw.rank)()
        if nature in ("lefts", "rights"):
            return self.draw.left() if nature == "lefts" else self.draw.right()
        return self.draw.row() if nature == "rows" else self.draw.column()

    def reduced_number(self) -> str:
        """Return a number that a reduction makes, or sometimes an item of a tuple instead."""
        has_items = "betas[1]" in self.known.numbers
        return "betas[1]" if has_items and self.draw.chance(0.15) else self.draw.reduced_number(1)

    def assign_local(self, nature: str) -> str:
        """Return an assignment to a local variable, or to `g` or `p`."""
        value = self.value(nature)
        g_or_p = ("g", "p") if nature == "tensors" and self.draw.chance(0.4) else ()
        return self.assign_one_of(nature, value, *g_or_p)

    def assign_one_of(self, nature: str, value: str, *names: str) -> str:
        """Return an assignment to one of these names; without names, to a local variable."""
        name = self.draw.pick(*(names or LOCALS[nature]))
        return self.assign(nature, name, value)

    def assign(self, nature: str, name: str, value: str) -> str:
        known = getattr(self.known, nature)
        if name not in known:
            known += [name] * 2
        value = f"0.5 * {name}" if value.strip("()") == name else value
        return f"{name} = {value}"

    def state_assignment(self) -> list[str]:
        """Return an assignment to a state or to the parameter."""
        available = [(s, n) for s, n, condition in self.states if self.is_known_to_hold(condition)]
        with_axes = ("rows", "columns", "lefts", "rights", *Known.THIN)
        available = [(s, n) for s, n in available if n not in with_axes or self.draw.has_axes]
        if not available:
            return [self.assign_local("tensors")]
        symbol, nature = self.draw.rng.choice(available)
        if self.draw.chance(0.35):
            return [self.mix_into(symbol, nature)]
        return [self.assign(nature, symbol, self.value(nature))]

    def is_known_to_hold(self, condition: str) -> bool:
        """Tell whether a condition is known to hold here."""
        return (
            not condition
            or condition in self.known_conditions
            or (condition == "factored(p)" and self.draw.has_axes)
        )

    def momentum_update(self) -> list[str]:
        """Return an update of momentum as papers write it, and sometimes the parameter's update."""
        available = [
            s
            for s, n, condition in self.states
            if n == "tensors" and self.is_known_to_hold(condition)
        ]
        if not available:
            return [self.assign_local("numbers")]
        pick = self.draw.pick
        m = pick(*available)
        form = pick(
            f"{m} = beta1 * {m} + (1 - beta1) * g",
            f"{m} = beta2 * {m} + (1 - beta2) * g**2",
            f"{m} = lerp({m}, g, 1 - beta1)",
            f"{m} = maximum(beta2 * {m}, abs(g) + eps)",
            f"{m} = {m} + g * g",
            f"{m} = maximum({m}, g**2)",
            f"{m} = -(-{m}) + g",
        )
        update = pick(
            f"p = p - lr * {m}",
            f"p = p - lr * g / (sqrt(abs({m})) + eps)",
            f"p = p - lr * {m} / (sqrt({m}**2) / (1 - beta2) + eps)",
            f"p = p * (1 - lr * c) - lr * sign({m})",
        )
        return [form, update] if self.draw.chance(0.4) else [form]

    def double_assignment(self) -> list[str]:
        """Return a double assignment, a swap, or a swap through a third name."""
        nature = self.draw.pick(*["numbers"] * 2, *["tensors"] * 3, *["rows"] * self.draw.has_axes)
        states = [
            s for s, n, condition in self.states if n == nature and self.is_known_to_hold(condition)
        ]
        known = getattr(self.known, nature)
        local_names = [n for n in known if n in LOCALS[nature]]
        names = list(
            dict.fromkeys([*states, *local_names, *(["p", "g"] if nature == "tensors" else [])])
        )
        unassignable = ("lr", "c", "eps", "beta1", "beta2", "betas[1]", "t", "opt", "rank")
        names = [n for n in names if n not in unassignable]
        if len(names) < 2:
            return [self.assign_local("tensors")]
        a, b = self.draw.rng.sample(names, 2)
        if self.draw.chance(0.45):
            return [f"{a}, {b} = {b}, {a}"]
        if self.draw.chance(0.3):
            x = LOCALS[nature][0]
            if x not in (a, b):
                return [self.assign(nature, x, a), f"{a} = {b}", f"{b} = {x} + 1"]
        return [f"{a}, {b} = {self.value(nature, 1)}, {self.value(nature, 1)}"]

    def matrix_op(self, level: int) -> list[str]:
        """Return a call of a matrix op, sometimes inside another call, or between two reads."""
        indent = "    " * level
        if not self.draw.has_axes:
            return []
        x = self.draw.tensor(1)
        least = self.draw.pick("0.01", "0.01", "1e-30", "0", "0.01 * (1 + abs(lr))")
        options = self.draw.pick("", "", ', divisor="spectral"', ', dtype="float16"')
        options += self.draw.pick("", ', dtype="parameter"') * ("dtype" not in options)
        call = f"orthogonalize({x}, {self.poly}, {self.draw.pick('1', '2')}, {least}{options})"
        if self.draw.chance(0.2):
            call = f"orthogonalize({call}, {self.poly}, 1, 0.5)"
        if self.draw.chance(0.25):
            return [indent + line for line in self.reads_around(call)]
        return [indent + self.assign_one_of("tensors", call, "x", "y", "z", "g")]

    def reads_around(self, call: str) -> list[str]:
        """Return statements that read a number, row or column before and after a matrix op."""
        nature = self.draw.pick("reduced_numbers", "rows", "columns")
        name, target = self.draw.pick(*LOCALS[nature]), self.draw.pick("x", "y", "z", "g")
        scaled = call.replace("orthogonalize(", f"orthogonalize((1 + abs({name})) * ", 1)
        return [
            self.assign(nature, name, self.value(nature, 1)),
            self.assign("tensors", target, f"{scaled} * (1 - {name} / (1 + abs({name})))"),
        ]

    def compound_statement(self, kind: str, level: int, depth: int) -> list[str]:
        """Return a compound statement."""
        raise NotImplementedError
