"""Typeset a rule as LaTeX: the spec's statements in the author's order, with a paper's letters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from optgen.contract.states import FACTS
from optgen.ir.algorithm import Algorithm
from optgen.ir.kinds import Stage, declared_kinds, kind_of
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    If,
    Program,
    Ref,
    always_assigned,
    assigns,
    expressions,
    names_read,
    rebuild,
    truth,
    walk,
)
from optgen.ir.ops import MATRIX_OP_OPTIONS, MATRIX_OPS, OPS, PROPERTIES, RANDOM_OPS, WIDE_OPS
from optgen.passes.prepare_rule import add_maximize

# Precedence of each op, and the least precedence of each operand without parentheses.
_PRECEDENCE: dict[str, tuple[int, tuple[int, ...]]] = {
    "or": (1, (1, 2)),
    "and": (2, (2, 3)),
    "not": (3, (8,)),
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), (4, (5, 5))),
    "+": (5, (5, 6)),
    "-": (5, (5, 6)),
    "neg": (5, (6,)),
    "log": (5, (7,)),
    "*": (6, (6, 7)),
    "%": (6, (6, 7)),
    **dict.fromkeys(WIDE_OPS, (6, (6,))),
    "@": (6, (6, 7)),
    "transpose": (8, (9,)),
    **dict.fromkeys(("solve_triangular", "solve_transposed"), (6, (9, 7))),
    "inverse_root": (8, (5, 7, 6)),
    "/": (7, (0, 0)),
    "exp": (8, (0,)),
    "**": (8, (9, 0)),
}
_COMPARISON, _SUM, _PRODUCT, _POWER, _ATOM = 4, 5, 6, 8, 9  # precedences in the table
_INDENT = r"\quad "
_NEGATED = {
    "truth": ("{0} = 0", _COMPARISON),
    "is_none": (r"{0} \ne \varnothing", _COMPARISON),
    "fresh": (r"{0} \text{{ is not new}}", _COMPARISON),
    "factored": (r"\dim {0} \le 1", _COMPARISON),
    "tall": (r"{0} \text{{ is not tall}}", _COMPARISON),
    "within": (r"{0} > {1}", _COMPARISON),
}
"""LaTeX and precedence of negated predicates."""

_WITHOUT_TIME = {
    "truth": (r"{0} \ne 0", _COMPARISON),
    "is_none": (OPS["is_none"].latex, _COMPARISON),
    "fresh": (OPS["fresh"].latex, _COMPARISON),
    "factored": (OPS["factored"].latex, _COMPARISON),
    "tall": (OPS["tall"].latex, _COMPARISON),
    "within": (OPS["within"].latex, _COMPARISON),
    **{word: (OPS[word].latex, _ATOM) for word in PROPERTIES if word not in FACTS},
}
"""LaTeX and precedence of predicates and properties, whose operands have no time index."""

_ESCAPES = str.maketrans(
    {sign: rf"\{sign}" for sign in "{}$&#%_"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)
"""LaTeX escapes of characters that have a meaning in LaTeX."""


def to_latex(algorithm: Algorithm) -> str:
    """Return the whole rule as an `aligned` environment, with one statement per line."""
    lines = [rf"    &{line} \\" for line in _Typesetter(algorithm).lines()]
    lines[-1] = lines[-1].removesuffix(r" \\")
    return "\n".join([r"\begin{aligned}", *lines, r"\end{aligned}"])


class _Typesetter:
    """Typesetter of statements in order.

    `written` holds the names that already have new values. `carried` holds the names that keep
    their old value unless the present branch writes them; a line above the branch copies the old
    value. `timed` holds the parameter and the states that a step writes, `timeless` the other
    states and the step, and `changing` the local variables that change with time. `wide` holds the
    reductions over several parameters, which the reader made statements of their own.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = add_maximize(algorithm)
        self.symbols = Symbols(self.algorithm)
        self.kinds = declared_kinds(self.algorithm)
        self.timed = {algorithm.param, *(s.symbol for s in algorithm.states if s.written)}
        self.timeless = {*(s.symbol for s in algorithm.states if not s.written), algorithm.step}
        self.written: set[str] = set()
        self.carried: set[str] = set()
        self.changing: set[str] = set()
        self.wide: dict[str, Expr] = {}
        calls = (node for expr in expressions(self.algorithm.rule) for node in walk(expr))
        ops = (call for call in calls if isinstance(call, Call) and call.op in MATRIX_OPS)
        self.options = {option for call in ops for option in call.args[OPS[call.op].arity :]}
        self._find_changing(self.algorithm.rule)

    def _find_changing(self, program: Program) -> None:
        """Find the variables that change with time, and those that are computed from them."""
        kinds = dict(self.kinds)
        for stmt in assigns(program):
            value = _without_properties(stmt.value)  # properties do not depend on time
            kinds[stmt.target.name] = kind_of(value, lambda ref: kinds[ref.name])
            changes = kinds[stmt.target.name].stage >= Stage.PARAM
            if changes or self.changing & names_read((Assign(stmt.target, value),)):
                self.changing.add(stmt.target.name)

    def lines(self) -> Iterator[str]:
        if not self.algorithm.is_function:
            param, grad = self.algorithm.param, self.algorithm.grad
            loss = rf"\nabla_{{{self.symbols.at(param)}}} f_t({self._ref(param)})"
            yield rf"{self._ref(grad)} \leftarrow {loss}"
        rule = _without_fixed_branches(self.algorithm.rule, self.algorithm)
        yield from self._program(rule, 0, frozenset((self.algorithm.param,)))

    def _program(self, program: Program, depth: int, later: frozenset[str]) -> Iterator[str]:
        """Yield the lines of a program; `later` are the names that are read after the program."""
        for i, stmt in enumerate(program):
            if isinstance(stmt, If):
                yield from self._if(stmt, depth, later | names_read(program[i + 1 :]))
                continue
            if isinstance(stmt.value, Call) and stmt.value.op in WIDE_OPS:
                self.wide[stmt.target.name] = stmt.value
            elif not (is_unpacking(stmt) or stmt.target in self.options):
                name, value = stmt.target.name, self._text(stmt.value)
                self.written.add(name)
                yield rf"{_INDENT * depth}{self._ref(name)} \leftarrow {value}"

    def _if(self, stmt: If, depth: int, later: frozenset[str]) -> Iterator[str]:
        """Yield the lines of a branch, below lines for names that keep their old value."""
        always = always_assigned((stmt,))
        sometimes = {a.target.name for a in assigns((stmt,))} - always
        # If an arm does not write a name, the name keeps its old value in that arm.
        carried = sometimes & self.timed & later - self.written
        for name in sorted(carried - self.carried):
            new = self.symbols.at(name, "t")
            yield rf"{_INDENT * depth}{new} \leftarrow {self._ref(name)}"
        carried_above, self.carried = self.carried, self.carried | carried
        yield rf"{_INDENT * depth}\textbf{{if }} {self._text(stmt.condition)}:"
        yield from self._arms(stmt, depth, later)
        self.carried = carried_above
        self.written |= carried

    def _arms(self, stmt: If, depth: int, later: frozenset[str]) -> Iterator[str]:
        """Yield the lines of both arms; an `if` alone in the second arm becomes an "else if"."""
        before = set(self.written)
        yield from self._program(stmt.then, depth + 1, later)
        after_then, self.written = self.written, before
        match stmt.orelse:
            case ():
                pass
            case (If() as nested,):
                condition = self._text(nested.condition)
                yield rf"{_INDENT * depth}\textbf{{else if }} {condition}:"
                yield from self._arms(nested, depth, later)
            case _:
                yield rf"{_INDENT * depth}\textbf{{else}}:"
                yield from self._program(stmt.orelse, depth + 1, later)
        self.written &= after_then

    def _ref(self, name: str) -> str:
        if name in self.timed:
            return self.symbols.at(name, "t" if name in self.written else "t-1")
        declared = name in self.kinds and self.kinds[name].stage >= Stage.PARAM
        changes = name not in self.timeless and (declared or name in self.changing)
        return self.symbols.at(name, "t" if changes else "")

    def _text(self, expr: Expr, min_precedence: int = 0) -> str:
        """Typeset an expression, in parentheses if its precedence is below `min_precedence`."""
        text, precedence = self._node(expr)
        if precedence >= min_precedence:
            return text
        is_high = r"\frac" in text or r"\sqrt" in text
        return rf"\left({text}\right)" if is_high else f"({text})"

    def _node(self, expr: Expr) -> tuple[str, int]:
        """Return the LaTeX of an expression, and its precedence."""
        match expr:
            case Const(value):
                return _constant(value)
            case Ref(name) if name in self.wide:
                return self._node(self.wide[name])
            case Ref(name) if (hyper := self.algorithm.hyper(name)) and hyper.type == "tuple":
                return self.symbols.hyper(name), _ATOM
            case Ref(name):
                text = self._ref(name)
                return text, _POWER if "^" in text else _ATOM
            case Call("item", (Ref(values), Const(int() as index))):
                return self.symbols.item(values, index), _ATOM
            case Call("not", (Call(word, args),)) if word in _NEGATED:
                return self._without_time(*_NEGATED[word], args)
            case Call(word, args) if word in _WITHOUT_TIME:
                return self._without_time(*_WITHOUT_TIME[word], args)
            case Call(word, (seed, stream, step, Const(int() as call))) if word in RANDOM_OPS:
                numbers = [self._text(_key_as_written(n)) for n in (seed, stream)]
                texts = [*numbers, self._text(step), str(call + 1)]
                return OPS[word].latex.format(*texts), _ATOM
            case Call(word, args) if word in MATRIX_OPS:
                return self._matrix_op(word, args), _ATOM
            case Call(word, args):
                precedence, min_precedences = _PRECEDENCE.get(word, (_ATOM, (0,) * len(args)))
                texts = [
                    self._text(a, least) for a, least in zip(args, min_precedences, strict=True)
                ]
                if word == "*" and texts[1][0].isdigit():
                    return rf"{texts[0]} \cdot {texts[1]}", precedence
                return _short_power(OPS[word].latex.format(*texts)), precedence
        raise TypeError(f"cannot typeset {type(expr).__name__}: {expr!r}")

    def _matrix_op(self, word: str, args: tuple[Expr, ...]) -> str:
        """Typeset a matrix op, with the options that are not their defaults."""
        arity = OPS[word].arity
        texts = [self._text(arg) for arg in args[:arity]]
        # The dtype of the parameter is given by its machine epsilon.
        given = [str(o.value) if isinstance(o, Const) else "parameter" for o in args[arity:]]
        for (name, values), value in zip(MATRIX_OP_OPTIONS.items(), given, strict=False):
            if value != values[0]:
                texts.append(rf"\text{{{name}}} = \text{{{value}}}")
        last = texts[arity - ("none" not in given) :]  # without a divisor, there is no eps
        return OPS[word].latex.format(*texts[: arity - 1], ", ".join(last))

    def _without_time(self, latex: str, precedence: int, args: tuple[Expr, ...]) -> tuple[str, int]:
        """Typeset a predicate or property. A state in it has no time index."""
        operands = [
            self.symbols.at(arg.name)
            if isinstance(arg, Ref) and arg.name in self.timed
            else self._text(arg, _SUM)
            for arg in args
        ]
        return latex.format(*operands), precedence


def _key_as_written(number: Expr) -> Expr:
    """Return a seed or stream number as the author wrote it, without the reduction to 24 bits."""
    match number:
        case Call("floor", (Call("%", (written, _)),)):
            return written
    return number


def _without_properties(expr: Expr) -> Expr:
    """Return an expression with the constant 1 in place of each property, such as `numel(p)`."""
    if isinstance(expr, Call) and expr.op in PROPERTIES:
        return Const(1)
    return rebuild(expr, _without_properties)


def _constant(value: float | int | bool | str | None) -> tuple[str, int]:
    """Return the LaTeX of a constant, and its precedence."""
    if value is None:
        return r"\varnothing", _ATOM
    if isinstance(value, bool | str):
        return rf"\text{{{' '.join(str(value).translate(_ESCAPES).split())}}}", _ATOM
    precedence = _SUM if value < 0 else _ATOM
    mantissa, _, exponent = f"{value!r}".partition("e")
    if not exponent:
        return mantissa, precedence
    power = f"10^{{{int(exponent)}}}"
    if mantissa in ("1", "-1"):
        return mantissa.replace("1", power), min(precedence, _POWER)
    return rf"{mantissa} \cdot {power}", min(precedence, _PRODUCT)


def _short_power(text: str) -> str:
    """Return x^2 for x^{2}."""
    head, _, last = text.rpartition("^")
    return f"{head}^{last[1]}" if head and len(last) == 3 and last[0] == "{" else text


def _without_fixed_branches(program: Program, algorithm: Algorithm) -> Program:
    """Return the program with one arm for each branch that fixed hyperparameters decide."""

    def known(condition: Expr) -> bool | None:
        match condition:
            case Ref(name) | Call("truth", (Ref(name),)) if hyper := algorithm.hyper(name):
                return bool(hyper.default) if hyper.fixed and not hyper.set_by_step else None
        return None

    out: list[Assign | If] = []
    for stmt in program:
        if isinstance(stmt, Assign):
            out.append(stmt)
            continue
        then, orelse = (_without_fixed_branches(arm, algorithm) for arm in (stmt.then, stmt.orelse))
        holds = truth(stmt.condition, known)
        if holds is not None:
            out += then if holds else orelse
        elif then:
            out.append(If(stmt.condition, then, orelse, stmt.quote, stmt.place))
        elif orelse:
            out.append(If(Call("not", (stmt.condition,)), orelse, (), stmt.quote, stmt.place))
    return tuple(out)


_GREEK = re.compile(
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau|"
    "upsilon|phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega|ell"
)
_TORCH_LETTERS = {
    "p": "theta",
    "lr": "gamma",
    "eps": "epsilon",
    "weight_decay": "lambda",
    "lambd": "lambda",
    "momentum": "mu",
    "dampening": "tau",
    "momentum_decay": "psi",
    "lr_decay": "eta",
    "beta2_decay": "tau",
    "ns_coefficients": "a",
    "ns_steps": "k",
}
"""Names of letters that torch's documentation uses for the parameter and for hyperparameters."""

_ACCENTS = ("hat", "bar", "tilde")
_SUPERSCRIPTS = {
    "max": r"\max",
    "min": r"\min",
    "minus": "-",
    "plus": "+",
    "prev": r"\text{prev}",
}
_SUBSCRIPTS = {"inf": r"\infty"}


@dataclass(frozen=True)
class Letter:
    """Symbol with its superscript and subscript.

    With `ahead` it denotes the next step's value. With `timed` its name includes the step, as in
    `beta_t`.
    """

    base: str
    above: str = ""
    below: str = ""
    ahead: bool = False
    timed: bool = False

    def at(self, time: str = "") -> str:
        """Return the symbol at a time: "t", "t-1", or "" if it does not depend on time."""
        time = time or ("t" if self.timed else "")
        time = time + "+1" if self.ahead else time
        subscript = ",".join(part for part in (self.below, time) if part)
        superscript = f"^{_braced(self.above)}" if self.above else ""
        return self.base + superscript + (f"_{_braced(subscript)}" if subscript else "")


def _braced(text: str) -> str:
    return text if len(text) == 1 or text in _SUBSCRIPTS.values() else f"{{{text}}}"


def read_letter(name: str) -> Letter:
    """Return the letter of a name such as beta1, m_hat, v_max, mu_next or g_full.

    Other words and numbers are subscripts, because a superscript could be read as a power. A name
    that does not begin with a letter's name, such as `update`, becomes upright text.
    """
    if name[:-2] and name.endswith("_t"):
        return replace(read_letter(name[:-2]), timed=True)
    first, *rest = name.split("_")
    head = first.rstrip("0123456789")
    greek = _GREEK.fullmatch(head)
    if not greek and len(head) != 1:
        return Letter(rf"\text{{{name.replace('_', ' ')}}}")
    letter = Letter(f"\\{head}" if greek else head)
    above: list[str] = []
    below = [first[len(head) :]] if first != head else []
    for part in rest:
        if part in _ACCENTS:
            letter = replace(letter, base=rf"\{part}{{{letter.base}}}")
        elif part == "next":
            letter = replace(letter, ahead=True)
        elif part in _SUPERSCRIPTS:
            above.append(_SUPERSCRIPTS[part])
        elif part:
            below.append(part if part.isdigit() else _SUBSCRIPTS.get(part, rf"\text{{{part}}}"))
    return replace(letter, above=r"\,".join(above), below=",".join(below))


class Symbols:
    """Letters of all names of an algorithm. Two names have different letters where possible."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self._unpacked = {
            (tuple_ref.name, index): stmt.target.name
            for stmt in assigns(algorithm.rule)
            for tuple_ref, index in _unpacked_items(stmt)
        }
        self._letters: dict[str, Letter] = {}
        names = [algorithm.grad, *self._states(), *([algorithm.step] if algorithm.step else [])]
        names += [stmt.target.name for stmt in assigns(algorithm.rule)]
        names += [algorithm.param, *(h.name for h in algorithm.hypers if h.type == "number")]
        for name in names:
            self._choose_letter(name)

    def _choose_letter(self, name: str) -> None:
        """Choose the letter of a name."""
        if name in self._letters:
            return
        candidates = list(self._candidates(name))
        unique = (
            letter
            for letter in candidates
            if not any(self._looks_like(other, name, letter) for other in self._letters)
        )
        self._letters[name] = next(unique, candidates[-1])

    def _looks_like(self, other: str, name: str, letter: Letter) -> bool:
        """Tell whether a name with this letter would look like another name.

        Hyperparameters have no time index.
        """
        other_letter = self._letters[other]
        if other_letter.ahead:
            return False
        both_have_time = not self.algorithm.hyper(name) and not self.algorithm.hyper(other)
        return letter.at() == other_letter.at() or (
            both_have_time and letter.at("t") == other_letter.at("t")
        )

    def _candidates(self, name: str) -> Iterator[Letter]:
        """Yield the letters that a name may get, best first."""
        base = name.removesuffix("_next")
        if base != name and base in [self.algorithm.param, *self._states()]:
            yield replace(next(self._candidates(base)), above=r"\text{next}")
        elif self._is_conventional(name):
            yield read_letter(_TORCH_LETTERS[name])
        elif name.endswith("_t") and self._is_conventional(name[:-2]):
            yield read_letter(f"{_TORCH_LETTERS[name[:-2]]}_t")
        elif name in self._unpacked.values() and name.rstrip("0123456789") in _TORCH_LETTERS:
            head = name.rstrip("0123456789")
            yield read_letter(_TORCH_LETTERS[head] + name[len(head) :])
        yield read_letter(name)
        yield Letter(rf"\text{{{name.replace('_', ' ')}}}")

    def _states(self) -> Iterator[str]:
        return (state.symbol for state in self.algorithm.states)

    def _is_conventional(self, name: str) -> bool:
        """Tell whether a name is p or a hyperparameter for which torch's docs have a letter."""
        declared = name == self.algorithm.param or self.algorithm.hyper(name) is not None
        return declared and name in _TORCH_LETTERS

    def at(self, name: str, time: str = "") -> str:
        """Return a name's letter at a time: "t", "t-1", or "" for no time."""
        hyper = self.algorithm.hyper(name)
        if hyper is not None and hyper.type in ("flag", "choice"):
            escaped = name.replace("_", r"\_")
            return rf"\textit{{{escaped}}}"
        return self._letters[name].at(time)

    def item(self, name: str, index: int) -> str:
        """Return the letter of a tuple's item: that of its unpacked name, else the tuple's."""
        if (name, index) in self._unpacked:
            return self.at(self._unpacked[name, index])
        singular = name[:-1] if _GREEK.fullmatch(name[:-1]) else name
        return read_letter(f"{_TORCH_LETTERS.get(name, singular)}{index + 1}").at()

    def hyper(self, name: str) -> str:
        """Return a hyperparameter's letter; for a tuple, its items' letters in parentheses."""
        hyper = self.algorithm.hyper(name)
        if hyper is not None and hyper.type == "tuple":
            unpacked = any((name, i) in self._unpacked for i in range(hyper.size))
            if not unpacked and not _GREEK.fullmatch(name[:-1]) and name not in _TORCH_LETTERS:
                return read_letter(name).at()
            return f"({', '.join(self.item(name, i) for i in range(hyper.size))})"
        return self.at(name)


def is_unpacking(stmt: Assign) -> bool:
    """Tell whether a statement only names one item of a tuple."""
    return next(_unpacked_items(stmt), None) is not None


def _unpacked_items(stmt: Assign) -> Iterator[tuple[Ref, int]]:
    """Yield the tuple and the index of the item if a statement assigns an item to a name."""
    match stmt.value:
        case Call("item", (Ref() as tuple_ref, Const(int() as index))):
            yield tuple_ref, index
