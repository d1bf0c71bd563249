"""Split statements of a rule on whole matrices, so that elementwise work has its own statements.

`p - lr * (U @ (m / sqrt(v)))` becomes three statements: a quotient, a product, and the new `p`. The
first and the last are elementwise, so a sweep can compute them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import reduce

from optgen.ir.kinds import Axes, AxesError, Kind, kind_of, union
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    Linear,
    Program,
    Ref,
    Term,
    map_statements,
    only_factor,
    rebuild,
    refs,
    walk,
)
from optgen.ir.ops import OPS, PROPERTIES
from optgen.ir.reserved_in_python import free_name
from optgen.passes.descriptive_names import matrix_operand_name, matrix_word_name
from optgen.passes.linear_forms import ONE, multiply

_IN_SWEEPS = ("arithmetic", "comparison", "logic", "function", "reduction")
_CONDITIONS = ("comparison", "logic")


@dataclass
class MatrixWordSeparator:
    """Namer of the operands and results of matrix words.

    A statement is split only if a sweep can then compute a part of it. `kinds` gains the new
    names, and `used_names` has the names of all variables. A *word* is a matrix word here.
    """

    kinds: dict[Ref, Kind]
    used_names: set[str]
    new_statements: list[Assign] = field(default_factory=list)  # before the present statement
    rule_kinds: dict[str, Kind] = field(init=False)  # of the variables that the rule names

    def __post_init__(self) -> None:
        self.rule_kinds = {ref.name: kind for ref, kind in self.kinds.items()}

    def program(self, program: Program) -> Program:
        """Return a program with split statements."""
        return map_statements(program, self._split)

    def _split(self, stmt: Assign) -> Program:
        """Return the parts of a statement; the statement itself if no part is fusable."""
        kinds, used_names = dict(self.kinds), set(self.used_names)
        self.new_statements = []
        value = only_factor(stmt.value)
        value = (
            self._with_named_operands(value) if _is_word(value) else self._with_named_words(value)
        )
        parts = [*self.new_statements, replace(stmt, value=value)]
        if any(sweep_axes(part, self.kinds) is not None for part in parts):
            return tuple(replace(part, quote=stmt.quote, place=stmt.place) for part in parts)
        self.kinds.clear()
        self.kinds |= kinds
        self.used_names.intersection_update(used_names)
        return (stmt,)

    def _with_named_words(self, expr: Expr) -> Expr:
        """Return a value with a name for the result of each matrix word and property in it."""
        if isinstance(expr, Call) and expr.op in PROPERTIES:
            return self._named(expr, f"param_{expr.op}")
        if _is_word(expr):
            coefficient, expr = self._without_coefficients(expr)
            assert isinstance(expr, Call)
            word = self._with_named_operands(expr)
            return multiply(coefficient, self._named(word, matrix_word_name(expr, self.rule_kinds)))
        return rebuild(expr, self._with_named_words)

    def _without_coefficients(self, expr: Expr) -> tuple[Expr, Expr]:
        """Return the coefficient of a product, which a sweep can multiply by, and the product."""
        match only_factor(expr):
            case Call("@", factors) as product:
                parts = [self._without_coefficients(factor) for factor in factors]
                coefficient = reduce(multiply, (each for each, _ in parts))
                return coefficient, replace(product, args=tuple(each for _, each in parts))
            case Linear((Term(coefficient, (factor,), ()),)) if _is_scalar(coefficient, self.kinds):
                return coefficient, factor
        return ONE, expr

    def _with_named_operands(self, expr: Expr) -> Expr:
        """Return a matrix word with a name for each operand that needs elementwise work."""
        return rebuild(expr, self._operand)

    def _operand(self, expr: Expr) -> Expr:
        bare = only_factor(expr)
        if _is_word(bare):
            return self._with_named_operands(bare)
        if isinstance(bare, Ref | Const) or _is_scalar(bare, self.kinds):
            return expr
        value = self._with_named_words(expr)
        tensors = (ref.name for ref in refs(value) if not self.kinds[ref].is_scalar)
        return self._named(value, matrix_operand_name(value, next(tensors, "matrix")))

    def _named(self, value: Expr, wanted_name: str) -> Ref:
        name = free_name(wanted_name, self.used_names)
        self.used_names.add(name)
        ref = Ref(name)
        self.kinds[ref] = kind_of(value, self.kinds.__getitem__)
        self.new_statements.append(Assign(ref, value))
        return ref


def _is_word(expr: Expr) -> bool:
    """Tell whether an expression is an op that no sweep computes."""
    return isinstance(expr, Call) and not _is_in_sweeps(expr.op)


def _is_in_sweeps(op: str) -> bool:
    return op in OPS and OPS[op].category in _IN_SWEEPS


def sweep_axes(stmt: Assign, kinds: dict[Ref, Kind]) -> Axes | None:
    """Return the axes that a sweep for a statement goes over; None if no sweep can compute it.

    The statement must be elementwise or a reduction. It must not test numbers that the host knows:
    a sweep takes them as coefficients only.
    """
    tensors = [kinds[ref].axes for ref in refs(stmt.value) if not kinds[ref].is_scalar]
    nodes = list(walk(stmt.value))
    if not tensors or any(_reads_number_as_boolean(node, kinds) for node in nodes):
        return None
    if not all(_is_fusable_node(node, kinds) for node in nodes):
        return None
    try:
        return reduce(union, tensors, kinds[stmt.target].axes)
    except AxesError:
        return None


def has_rows_and_columns(axes: Axes) -> bool:
    """Tell whether values with these axes have both rows and columns."""
    return axes in _MATRIX_AXES


_MATRIX_AXES: Collection[Axes] = frozenset(
    (
        *(Axes.TENSOR, Axes.TENSOR_T, Axes.ROWS_ROWS, Axes.COLS_COLS, Axes.ROWS_RANK),
        *(Axes.COLS_RANK, Axes.RANK_ROWS, Axes.RANK_COLS, Axes.RANK_RANK),
    )
)


def _is_fusable_node(node: Expr, kinds: dict[Ref, Kind]) -> bool:
    match node:
        case Const(value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case Call(op, args):
            if not _is_in_sweeps(op):
                return False
            tests_numbers = OPS[op].category in _CONDITIONS and _is_scalar(node, kinds)
            return bool(args) and not tests_numbers
    return True


def _reads_number_as_boolean(node: Expr, kinds: dict[Ref, Kind]) -> bool:
    """Tell whether an op reads a bare number as true or false."""
    match node:
        case Call("where", (condition, _, _)):
            operands: tuple[Expr, ...] = (condition,)
        case Call("and" | "or" | "not", args):
            operands = args
        case _:
            return False
    return any(_is_scalar(operand, kinds) for operand in operands)


def _is_scalar(expr: Expr, kinds: dict[Ref, Kind]) -> bool:
    return kind_of(expr, kinds.__getitem__).is_scalar
