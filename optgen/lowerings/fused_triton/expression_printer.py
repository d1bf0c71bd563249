"""Print expressions in Triton: numbers in float64, tensor elements in the compute dtype.

A property of a parameter (its shape or dtype) is loaded from a bucket's tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from optgen.ir.nodes import Call, Const, Expr, Linear, Ref, Term, walk
from optgen.ir.ops import CONDITION_OPERANDS, RANDOM_OPS
from optgen.ir.reserved_in_python import escaped, upper_case_name
from optgen.lowerings.python.literals import exact_literal
from optgen.passes.linear_forms import is_number, split_sign

_INFIX = {  # op -> precedence, operator
    "+": (5, "+"),
    "-": (5, "-"),
    "*": (6, "*"),
    "/": (6, "/"),
    "<": (4, "<"),
    "<=": (4, "<="),
    ">": (4, ">"),
    ">=": (4, ">="),
    "==": (4, "=="),
    "!=": (4, "!="),
}
LOGIC, COMPARISON, _SUM, _PRODUCT, _PREFIX, ATOM = 3, 4, 5, 6, 7, 9
"""Precedences of texts, on the scale of `_INFIX`."""

Printed: TypeAlias = tuple[str, int]
"""The text of an expression without parentheses around it, and its precedence."""

CALLS: Mapping[str, str] = {
    "%": "mod({0}, {1})",
    "sqrt": "sqrt({0})",
    "exp": "tl.exp({0})",
    "log": "tl.log({0})",
    "tanh": "tanh({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "atan2": "atan2({0}, {1})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "round": "round({0})",
    "rounded": "rounded_to({0}, {1})",
    "rounded_down": "rounded_down_to({0}, {1})",
    "rounded_up": "rounded_up_to({0}, {1})",
    "rounded_at_random": "rounded_at_random_to({0}, {1}, {2})",
    "random": "random_numbers(start + lanes, {0}, {1}, {2}, {3})",
    "random16": "random_numbers16(start + lanes, {0}, {1}, {2}, {3})",
    "abs": "tl.abs({0})",
    "sign": "sign({0})",
    "maximum": "maximum({0}, {1})",
    "minimum": "minimum({0}, {1})",
    "where": "tl.where({0}, {1}, {2})",
    "clamp": "minimum(maximum({0}, {1}), {2})",
    "lerp": "lerp({0}, {1}, {2})",
}
"""Ops that are printed as calls. Tensors divide by `div`, scalars by `/`."""

_LOGIC_TEXTS: Mapping[str, str] = {
    "and": "({0}) & ({1})",
    "or": "({0}) | ({1})",
    "not": "({0}) == 0",
}
"""Ops that are printed as operators between operands in parentheses."""

_FUNCTIONS = (
    "add_up at column_largest column_total combine div elements extents fold_chunk inside ipow "
    "is_last is_none is_whole larger largest lerp lines lines_inside masked maximum minimum mod "
    "neg pick_largest power random_numbers random_numbers16 rounded rounded_at_random_to "
    "rounded_down_to rounded_to rounded_up_to row_largest row_total sign sqrt tile_at tile_extent "
    "total whole_elements whole_power"
)
_ARGUMENTS = (
    "arrivals first_programs found_inf hypers loss_scale mask num_tensors partials parts "
    "scalars shapes table tensor_indices tensor_of_block values"
)
_VARIABLES = (
    "across all_columns all_rows block blocks bucket column_count column_lanes column_values count "
    "depth down dtype entry even first first_column first_row full groups height hyper in_batch "
    "in_columns in_rows k lanes machine_eps matrices matrix matrix_group matrix_values ndim numel "
    "part_sum_count part_sums program program_count programs remaining_columns remaining_matrices "
    "remaining_rows row_count row_lanes row_values shape start sum_count sums tensor tile_column "
    "tile_row tile_shape_index update width work"
)
_CONSTANTS = (
    "BLOCK BLOCKS COLUMNS COMPUTE_T DEPTH EPS FINISH_TILES FIRST_BLOCK GROUPS GROUP_PARTIALS "
    "GROUP_SUMS GROUP_SUM_COUNT HEIGHT NDIM NUMEL PARAM_GROUP PARTIALS ROWS SCALARS STREAMS SUMS "
    "SUM_COUNT TAIL TILES TILE_SHAPE_INDEX VALUES VECTOR WHOLE_NUMEL WIDTH WORKSPACE WORKSPACES"
)
RESERVED = frozenset(f"{_FUNCTIONS} {_ARGUMENTS} {_VARIABLES} {_CONSTANTS} tl triton".split())
"""Names that the kernels use themselves, so no variable of a rule may have them."""


def variable(name: str) -> str:
    """Return the variable of a name; all versions of a name share it."""
    return escaped(name, RESERVED)


def constant(name: str) -> str:
    """Return the constexpr of a flag."""
    return variable(upper_case_name(name))


@dataclass(frozen=True)
class ExpressionPrinter:
    """Printer of expressions.

    With `for_elements` it prints elements in the compute dtype, else numbers in float64.
    `read` returns the text of an expression that the surrounding code provides, and its precedence,
    or None.
    `read_condition` returns the name of a condition that the scalar program has evaluated, or None.
    """

    read: Callable[[Expr], Printed | None]
    for_elements: bool
    read_condition: Callable[[Expr], str | None] = lambda expr: None

    def __call__(self, expr: Expr, min_precedence: int = 0) -> str:
        """Return an expression's text, in parentheses if its precedence is too low."""
        text, precedence = self._text_and_precedence(expr)
        return f"({text})" if precedence < min_precedence else text

    def _text_and_precedence(self, expr: Expr) -> Printed:
        """Return an expression's text without parentheses, and its precedence."""
        provided = self.read(expr)
        if provided is not None:
            return provided
        match expr:
            case Const(value):
                text = exact_literal(value)
                return text, _PREFIX if text.startswith("-") else ATOM
            case Ref():
                return variable(expr.name), ATOM
            case Linear(terms):
                return self._sum(terms)
            case Call("neg", (a,)):
                return f"neg({self(a)})", ATOM
            case Call("**", (a, b)):
                return self._power(a, b)
            case Call("/", (a, b)) if self.for_elements:
                return f"div({self.argument(a)}, {self.argument(b)})", ATOM
            case Call(word, (a, b)) if word in _INFIX:
                precedence, sign = _INFIX[word]
                if precedence == COMPARISON:  # comparisons do not chain
                    left, right = self._comparison_operand(a), self._comparison_operand(b)
                    return f"{left} {sign} {right}", precedence
                return f"{self(a, precedence)} {sign} {self(b, precedence + 1)}", precedence
            case Call("copy", (value,)):  # values in registers are never overwritten
                return self._text_and_precedence(value)
            case Call(word, args):
                if word in RANDOM_OPS:  # the last operand is a constexpr
                    key = map(self.argument, args[:-1])
                    return CALLS[word].format(*key, self(args[-1])), ATOM
                num_conditions = CONDITION_OPERANDS.get(word, 0)
                condition_texts = (self.condition(a) for a in args[:num_conditions])
                arguments = (*condition_texts, *map(self.argument, args[num_conditions:]))
                if word in _LOGIC_TEXTS:
                    return _LOGIC_TEXTS[word].format(*arguments), LOGIC
                return CALLS[word].format(*arguments), ATOM
        raise TypeError(f"cannot print in Triton: {expr!r}")

    def condition(self, expr: Expr) -> str:
        """Return a condition's text: its name if it has one, compared with 0."""
        name = self.read_condition(expr)
        if name is None and isinstance(expr, Ref) and not self.read(expr):
            name = self(expr)
        return self(expr) if name is None else f"{name} != 0"

    def _comparison_operand(self, expr: Expr) -> str:
        """Return the text of an operand of a comparison.

        A fraction is printed as a tensor, because Triton would round a literal there to float32.
        """
        is_fraction = isinstance(expr, Const) and isinstance(expr.value, float)
        return self.argument(expr) if is_fraction else self(expr, _SUM)

    def argument(self, expr: Expr) -> str:
        """Return the text of a function's argument.

        A literal is printed as a tensor, because Triton would take it as float32 there.
        """
        if _reads_name(expr):
            return self(expr)
        return f"tl.full((), {self(expr)}, {'dtype' if self.for_elements else 'tl.float64'})"

    def _power(self, a: Expr, b: Expr) -> Printed:
        """Return the text of a power, and its precedence."""
        match b:
            case Const(int() as n) if 1 <= abs(n) <= 8:
                factor = self.argument(a) if n < 0 and not _reads_name(a) else self(a, _PREFIX)
                product = " * ".join([factor] * abs(n))
                return (product, _PRODUCT) if n > 0 else (f"div(1.0, {product})", ATOM)
            case Const(int() as n) if 1 <= abs(n) < 1024:  # more exact than a logarithm
                text = f"whole_power({self.argument(a)}, {abs(n)})"
                return (text if n > 0 else f"div(1.0, {text})", ATOM)
            case Const(0.5):
                return f"sqrt({self.argument(a)})", ATOM
            case Const(-0.5):  # as torch does; a power differs for -0.0 and -inf
                return f"div(1.0, sqrt({self.argument(a)}))", ATOM
        if _is_nonnegative_integer(b) and not isinstance(b, Const):
            return f"ipow({self.argument(a)}, {self(b)})", ATOM
        return f"power({self(a)}, {self.argument(b)})", ATOM

    def _sum(self, terms: tuple[Term, ...]) -> Printed:
        """Return the text of a sum of terms, and its precedence."""
        is_negative, text = self._term(terms[0])
        if is_negative:
            text = f"neg({text})"
        for term in terms[1:]:
            is_negative, unsigned = self._term(term)
            text += f" - {unsigned}" if is_negative else f" + {unsigned}"
        if len(terms) > 1:
            return text, _SUM
        return text, ATOM if text.isidentifier() else _PRODUCT

    def _term(self, term: Term) -> tuple[bool, str]:
        """Return whether a term is negative, and its unsigned text."""
        is_negative, coefficient = split_sign(term.coefficient)
        precedences = [_PRODUCT, *[_PREFIX] * len(term.factors)]
        product = " * ".join(map(self, term.factors, precedences))
        scale = [] if is_number(coefficient, 1) else [self(coefficient, _PRODUCT)]
        if term.divisors:
            divisor = (
                self(term.divisors[0])
                if len(term.divisors) == 1
                else " * ".join(self(d, _PREFIX) for d in term.divisors)
            )
            if len(term.factors) == 1:
                product = self(term.factors[0])
            dividend = product or (scale.pop() if scale else "1.0")
            return is_negative, " * ".join([*scale, f"div({dividend}, {divisor})"])
        if not product:
            return is_negative, (scale or ["1.0"])[0]
        return is_negative, " * ".join([*scale, product])


def _reads_name(expr: Expr) -> bool:
    """Tell whether an expression reads a name, and so has a dtype."""
    return any(isinstance(e, Ref) for e in walk(expr))


def _is_nonnegative_integer(expr: Expr) -> bool:
    """Tell whether an exponent is a nonnegative integer, such as the step count."""
    match expr:
        case Const(value):
            return isinstance(value, int) and value >= 0
        case Ref("step"):
            return True
        case Call("+" | "*", (a, b)):
            return _is_nonnegative_integer(a) and _is_nonnegative_integer(b)
        case Call("-", (Ref("step"), Const(1))):
            return True
        case _:
            return False


_LOADS: Mapping[str, tuple[str, str]] = {
    "numel": ("numel", "WHOLE_NUMEL * num_tensors).to(tl.float64)"),
    "ndim": ("ndim", "NDIM * num_tensors).to(tl.float64)"),
    "rows": ("row_count", "ROWS * num_tensors).to(tl.float64)"),
    "cols": ("column_count", "COLUMNS * num_tensors).to(tl.float64)"),
    "machine_eps": ("machine_eps", "EPS * num_tensors).to(tl.float64, bitcast=True)"),
}
"""Variable of each property, and the end of the expression that loads it from a table of shapes."""


def read_property(expr: Expr) -> Printed | None:
    """Return the variable of an expression that is a property, else None."""
    return (_LOADS[expr.op][0], ATOM) if isinstance(expr, Call) and expr.op in _LOADS else None


def load_properties(exprs: Iterable[Expr], use: Callable[[str], str] = str) -> list[str]:
    """Return the lines that load the properties in these expressions."""
    ops = {e.op for expr in exprs for e in walk(expr) if isinstance(e, Call)}
    return [
        f"{name} = tl.load({use('shape')} + {offset}"
        for word, (name, offset) in _LOADS.items()
        if word in ops
    ]
