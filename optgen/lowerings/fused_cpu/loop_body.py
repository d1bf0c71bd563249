"""Print the computations of a C++ loop, and the constants that it computes before it begins.

The constants are numbers of the whole tensor: hyperparameters, results of the scalar program,
arithmetic of them, exponents, keys of random numbers, and conditions. Arithmetic is in double. In
the compute type of the loop, which may be float, `1 - beta2` would lose digits: its rounding error
is one of `beta2`, which is much larger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from optgen.ir.algorithm import Hyper
from optgen.ir.kinds import Axes
from optgen.ir.nodes import (
    Call,
    Const,
    Expr,
    Program,
    Ref,
    assigns,
    children,
    map_values,
    rebuild,
    refs,
)
from optgen.ir.ops import CONDITION_OPERANDS, OPS, PROPERTIES, RANDOM_OPS
from optgen.ir.plan import Plan
from optgen.ir.reserved_in_python import free_name, is_free
from optgen.lowerings.fused_cpu.cpp_text import (
    ATOM,
    CALLS,
    COMPARISON,
    ExpressionPrinter,
    Statements,
    has_function,
    masks,
    variable,
    wrapped_statement,
)
from optgen.lowerings.fused_cpu.scalar_program import NumberPrinter, ScalarProgram
from optgen.passes.convert_branches import BranchFlattener
from optgen.passes.descriptive_names import candidate_names, is_rare, scalar_name

_COLUMN = 8  # at which constants are declared
_DRAWS = {"random": "random_numbers", "random16": "random_numbers16"}
"""C++ function that draws the numbers of an op."""
_KEYS = {"random": "RandomKey", "random16": "RandomKey16"}
"""C++ type of the key from which an op draws."""


class LoopBody:
    """Computations of one loop.

    `lines` are the lines between loads and stores, `constants` those before the loop, and `inputs`
    the parameters that both read. `are_simple` is the text of the condition that all exponents are
    ones for which torch takes a root or products; "" if the loop reads no such condition. `numbers`
    maps the numbers that steps compute to their C++ texts, and `flags` the conditions that are
    known at compile time to template parameters. `outputs` are the names that are read after the
    body.
    """

    def __init__(
        self,
        plan: Plan,
        body: Program,
        program: ScalarProgram,
        *,
        numbers: Mapping[str, str],
        flags: Mapping[str, str],
        arrays: Collection[str],
        loaded: Collection[str],
        outputs: Collection[str],
        column: int,
    ) -> None:
        self._plan, self._fields, self._numbers = plan, program.fields, numbers
        self._print_number = NumberPrinter(plan.algorithm, program, numbers)
        self._print_element = ExpressionPrinter(
            for_elements=True, read=self._read_element, read_condition=self._read_condition
        )
        self._body = map_values(body, _multiply_by_reciprocals)
        used_names = {r.name for r in plan.kinds} | {*self._fields.values(), *outputs, *arrays}
        self._assigned = {a.target for a in assigns(self._body)}
        self._arithmetic = _name_arithmetic(plan, self._body, used_names)
        used_names |= set(self._arithmetic.values())
        hypers = {h.name: h for h in plan.algorithm.hypers}
        self._conditions = _Conditions(flags, hypers, self._print_number, used_names)
        self._keys = _RandomKeys(self._print_number, used_names)
        self._powers = _Powers(self._print_number, used_names)
        flat_body = BranchFlattener(self._conditions.reads_flag)(self._body)
        self._masks = masks(flat_body)
        self.lines = Statements(
            "C",
            lambda a: self._print_element(a.value),
            self._conditions.head,
            flat_body,
            frozenset(loaded),
            frozenset(outputs),
            self._masks,
        ).lines(column)
        self.constants = list(self._constants())
        self.inputs = frozenset(self._print_number.inputs)
        self.are_simple = self._powers.are_simple

    def _constants(self) -> Iterator[str]:
        """Declare the numbers that the loop reads, in its compute type."""
        yield from self._named_numbers()
        declarations = [
            *(
                f"const C {variable(name)} = C({self._print_number(expr)});"
                for expr, name in self._arithmetic.items()
            ),
            *self._powers.declarations(),
            *self._keys.declarations(),
        ]
        conditions = list(self._conditions.declarations())
        for declaration in declarations:
            yield from wrapped_statement(declaration, _COLUMN)
        if conditions:
            yield (
                "// Flags: conditions as 1 or 0 of type C, so that branches on them become selects."
            )
        for declaration in conditions:
            yield from wrapped_statement(declaration, _COLUMN)

    def _named_numbers(self) -> Iterator[str]:
        """Declare the hyperparameters, scalars and numbers that expressions of elements read."""
        read = {r for a in assigns(self._body) for r in self._numbers_in(a.value)}
        names = {self._fields.get(r, variable(r.name)) for r in read}
        for ref in self._plan.coefficients():
            name = self._fields.get(ref, variable(ref.name))
            if name in names:
                source = "scalars" if ref in self._fields else "hypers"
                text = self._print_number.input(source, f"{source}.{name}")
                yield f"const C {name} = C({text});"
        for name, text in self._numbers.items():
            if name in {r.name for r in read}:
                yield f"const C {variable(name)} = C({self._print_number.input('numbers', text)});"

    def _numbers_in(self, value: Expr) -> Iterator[Ref]:
        """Yield the names that a value reads, except in what the loop computes before it begins."""
        if isinstance(value, Ref):
            yield value
        if value in self._arithmetic or (isinstance(value, Call) and value.op in RANDOM_OPS):
            return
        for child in _children_for_elements(value, self._plan):
            yield from self._numbers_in(child)

    def _read_condition(self, condition: Expr) -> tuple[str, int] | None:
        """Return the text of a named condition, and its precedence; None for another one."""
        match condition:
            case Const():
                return None
            case _ if self._plan.kind(condition).is_scalar:
                return f"{self._conditions.name(condition)} != 0", COMPARISON
            case Ref(name) if name in self._masks:
                return variable(name), ATOM
            case Ref(name):
                return f"{variable(name)} != 0", COMPARISON
        return None

    def _read_element(self, expr: Expr) -> str | None:
        """Return the text of a scalar, a random draw or a size; for other expressions, None."""
        match expr:
            case Ref():
                return self._fields.get(expr)
            case _ if expr in self._arithmetic:
                return variable(self._arithmetic[expr])
            case Call("**", (base, exponent)) if self._is_power(expr):
                return self._powers.text(self._print_element(base), exponent)
            case Call("rounded_at_random", (x, Call("random16") as draw, eps)):
                bits = self._draw("random_bits16", draw)
                return CALLS["rounded_at_random"].format(
                    self._print_element(x), bits, self._print_element(eps)
                )
            case Call(word, _) as draw if word in RANDOM_OPS:
                return self._draw(_DRAWS[word], draw)
            case Call(word, _) if word in PROPERTIES:
                return f"C({self._print_number(expr)})"
            case Call("/", (Const(), Call(word, _))) if word in PROPERTIES:
                return f"C({self._print_number(expr)})"
        return None

    def _is_power(self, expr: Call) -> bool:
        """Tell whether all elements have the exponent of a power, known before the loop begins."""
        exponent = expr.args[1]
        is_constant = self._assigned.isdisjoint(refs(exponent))
        return is_constant and _is_number(exponent, self._plan) and has_function(expr)

    def _draw(self, function: str, draw: Call) -> str:
        """Return the text that draws the random number of an element."""
        place = self._print_number.input("first", "first + i")
        return f"{function}<S>({place}, {self._keys.name(draw)})"


def _multiply_by_reciprocals(expr: Expr) -> Expr:
    """Return an expression that multiplies by the reciprocals of sizes instead of dividing.

    The quotient of a constant and a size stays, because it is computed before the loop.
    """
    expr = rebuild(expr, _multiply_by_reciprocals)
    match expr:
        case Call("/", (value, Call(word, _) as size)) if word in PROPERTIES:
            if not isinstance(value, Const):
                return Call("*", (value, Call("/", (Const(1), size))))
    return expr


def _name_arithmetic(plan: Plan, body: Program, used_names: Collection[str]) -> dict[Expr, str]:
    """Name each largest arithmetic expression of numbers in a body; equal ones share a name."""
    assigned = {a.target for a in assigns(body)}
    names: dict[Expr, str] = {}
    for assign in assigns(body):
        for expr in _arithmetic_in(assign.value, plan):
            if expr not in names and assigned.isdisjoint(refs(expr)):
                wanted = scalar_name(expr) or "scalar"
                names[expr] = free_name(wanted, {*used_names, *names.values()})
    return names


def _arithmetic_in(expr: Expr, plan: Plan) -> Iterator[Expr]:
    """Yield the largest arithmetic expressions of numbers in an expression.

    Numbers in conditions, in keys of random numbers and of single properties are not among them:
    the loop computes those before it begins, too.
    """
    if isinstance(expr, Call) and expr.op in RANDOM_OPS:
        return
    if _may_round(expr) and _is_number(expr, plan):
        yield expr
        return
    for child in _children_for_elements(expr, plan):
        yield from _arithmetic_in(child, plan)


def _children_for_elements(expr: Expr, plan: Plan) -> Iterator[Expr]:
    """Yield the operands of an expression, except what is uniform over the tensor.

    This is a condition, or an exponent: the loop computes both before it begins.
    """
    match expr:
        case Call("**", (base, exponent)) if _is_number(exponent, plan):
            yield base
            return
    num_conditions = CONDITION_OPERANDS.get(expr.op, 0) if isinstance(expr, Call) else 0
    for position, child in enumerate(children(expr)):
        if position >= num_conditions or not plan.kind(child).is_scalar:
            yield child


def _may_round(expr: Expr) -> bool:
    """Tell whether an expression may round its value; a sign and the reciprocal of a size do not.

    The loop prints the reciprocal of a size as a number in double.
    """
    match expr:
        case Call("/", (Const(), Call(word, _))) if word in PROPERTIES:
            return False
        case Call(word, _) if word != "neg":
            return OPS[word].category in ("arithmetic", "function")
    return False


def _is_number(expr: Expr, plan: Plan) -> bool:
    """Tell whether all elements share the value of an expression."""
    return plan.kind(expr).axes is Axes.NONE


def key_of_draw(draw: Call, print_number: NumberPrinter, name: str = "") -> str:
    """Return the text that makes the key of a draw, or that declares the key by a name."""
    return f"{_KEYS[draw.op]} {name}".rstrip() + f"({', '.join(map(print_number, draw.args))})"


@dataclass
class _RandomKeys:
    """Keys of the random numbers that a loop draws. Equal draws share a key."""

    print_number: NumberPrinter
    used_names: Collection[str]
    names: dict[Call, str] = field(default_factory=dict)

    def declarations(self) -> Iterator[str]:
        """Yield the statement that declares each key."""
        for draw, name in self.names.items():
            yield f"{key_of_draw(draw, self.print_number, name)};"

    def name(self, draw: Call) -> str:
        """Return the name of a draw's key."""
        name = free_name("random_key", {*self.used_names, *self.names.values()})
        return self.names.setdefault(draw, name)


@dataclass
class _Powers:
    """Powers of elements whose exponents are numbers; equal exponents share a name.

    For a simple exponent torch takes a root or products. If all of them are simple, the loop does
    so, too: it is compiled a second time, with the template parameter `SIMPLE_POWERS`.
    """

    print_number: NumberPrinter
    used_names: Collection[str]
    names: dict[Expr, str] = field(default_factory=dict)

    def declarations(self) -> Iterator[str]:
        """Yield the statement that declares what the powers with an exponent share."""
        for exponent, name in self.names.items():
            yield f"const Power<C> {variable(name)}({self.print_number(exponent)});"

    def text(self, base: str, exponent: Expr) -> str:
        """Return the text of a power."""
        free = free_name("shared_power", {*self.used_names, *self.names.values()})
        name = variable(self.names.setdefault(exponent, free))
        is_simple = "false" if isinstance(exponent, Const) else "SIMPLE_POWERS"
        return f"pow<{is_simple}>({base}, {name})"

    @property
    def are_simple(self) -> str:
        """The condition that the exponents are simple; "" if all of them are constants."""
        names = (n for exponent, n in self.names.items() if not isinstance(exponent, Const))
        return " && ".join(f"{variable(name)}.is_simple" for name in names)


@dataclass
class _Conditions:
    """Conditions of a loop that are the same for all elements of a tensor.

    A condition on flags that decide which streams exist is known at compile time; `flags` maps them
    to template parameters. The loop computes any other condition before it begins, and names it.
    """

    flags: Mapping[str, str]
    hypers: Mapping[str, Hyper]
    print_number: NumberPrinter
    used_names: Collection[str]
    texts: dict[str, str] = field(default_factory=dict)  # of named conditions, by name

    def declarations(self) -> Iterator[str]:
        """Yield the statement that declares each named condition."""
        return (f"const auto {name} = {text};" for name, text in self.texts.items())

    def head(self, condition: Expr) -> str:
        """Return the head of a branch: `if` with its condition."""
        is_constant, text = self._condition(condition)
        return f"if {'constexpr ' if is_constant else ''}({text})"

    def _condition(self, expr: Expr) -> tuple[bool, str]:
        """Return whether a condition is known at compile time, and its text."""
        if not self.reads_flag(expr):
            return False, f"{self.name(expr)} != 0"
        match expr:
            case Ref(name) | Call("truth", (Ref(name),)):
                return True, self.flags[name]
            case Call("not", (inner,)):
                is_constant, text = self._condition(inner)
                is_infix = not self.reads_flag(inner)
                is_infix |= isinstance(inner, Call) and inner.op in ("and", "or")
                return is_constant, f"!({text})" if is_infix else f"!{text}"
            case Call("and" | "or" as word, (a, b)):
                (a_is_constant, left), (b_is_constant, right) = map(self._condition, (a, b))
                sign = "&&" if word == "and" else "||"
                return a_is_constant and b_is_constant, f"({left}) {sign} ({right})"
        raise TypeError(f"not a compile-time condition: {expr!r}")

    def reads_flag(self, expr: Expr) -> bool:
        """Tell whether a condition reads a flag that decides which streams exist.

        Such a condition is known at compile time, at least in part.
        """
        match expr:
            case Ref(name) | Call("truth", (Ref(name),)):
                return name in self.flags
            case Call("and" | "or" | "not", args):
                return any(map(self.reads_flag, args))
        return False

    def name(self, expr: Expr) -> str:
        """Return the C++ name of a condition that is uniform over the tensor, and declare it."""
        inner = expr  # the condition of the innermost of nested branches
        while isinstance(inner, Call) and inner.op == "and":
            inner = inner.args[1]
        function = "rare_flag" if is_rare(expr, self.hypers) else "flag"
        text = f"{function}<C>({self.print_number(expr)})"
        used_names = {*self.used_names} - _only_name(inner)
        for name in map(variable, candidate_names(inner, expr)):
            if is_free(name, used_names) and self.texts.setdefault(name, text) == text:
                return name
        raise AssertionError("candidate_names() is infinite")


def _only_name(expr: Expr) -> set[str]:
    """Return the name of the flag or fresh state that a condition consists of, else an empty set.

    The C++ variable of such a condition may have that name.
    """
    match expr:
        case Ref(name) | Call("fresh", (Ref(name),)):
            return {name}
    return set()
