"""Know at each point of a rule which names it may read, their kinds and types, and what holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from optgen.contract.states import FACTS, SIDES, Condition, size_limit
from optgen.ir.algorithm import Algorithm, Hyper, fact_of
from optgen.ir.kinds import SHAPES, Axes, Kind, declared_kinds, kind_of
from optgen.ir.nodes import Call, Const, Expr, Place, Ref, Stmt
from optgen.ir.ops import OPS
from optgen.spec.literals import is_real


@dataclass
class Scope:
    """The names that a rule may read at the current point, and the statements read so far.

    * `kinds`: the names defined on every path to this point, with their kinds.
    * `maybe_undefined`: the names defined on some paths only.
    * `read`, `written`: the names that the rule has read and written so far.
    * `locals`: the author's own variables, with the place of the first assignment.
    * `booleans`: the variables that are true or false.
    * `axes`: the axes of every name ever assigned.
    * `items`: for each variable unpacked from a tuple, the item of the tuple.
    * `helper_values`: while a helper is inlined, the expression that each of its names stands for;
      else None.
    * `inlined_helpers`: the helpers that are being inlined, outermost first.
    * `rule_names`: all names in the rule's text. An inlined name may not collide with them.
    * `known_true`: conditions that hold in the current branch, as `implied` returns them.
    * `statements`: the statements read so far, in the current branch.
    * `scalars_from_reductions`: the scalar states that are computed from a reduction.
    * `num_nodes`: the number of names, numbers and ops read so far.
    * `draw_count`: the number of calls read so far that draw random numbers.
    """

    algorithm: Algorithm
    constants: Mapping[str, Any]
    helpers: Mapping[str, ast.FunctionDef]
    kinds: dict[str, Kind] = field(default_factory=dict)
    maybe_undefined: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    locals: dict[str, Place] = field(default_factory=dict)
    booleans: set[str] = field(default_factory=set)
    axes: dict[str, Axes] = field(default_factory=dict)
    items: dict[str, Expr] = field(default_factory=dict)
    helper_values: dict[str, Expr] | None = None
    inlined_helpers: tuple[str, ...] = ()
    rule_names: frozenset[str] = frozenset()
    known_true: frozenset[Condition] = frozenset()
    statements: list[Stmt] = field(default_factory=list)
    scalars_from_reductions: set[str] = field(default_factory=set)
    num_nodes: int = 0
    draw_count: int = 0

    def __post_init__(self) -> None:
        self.kinds.update(declared_kinds(self.algorithm))
        self.axes.update((name, kind.axes) for name, kind in self.kinds.items())

    @property
    def in_helper(self) -> bool:
        """Tell whether a helper is being inlined."""
        return self.helper_values is not None

    def kind(self, expr: Expr) -> Kind:
        """Return the kind of an expression at the current point."""
        return kind_of(expr, lambda ref: self.kinds[ref.name])

    def hyper_of(self, value: Expr) -> Hyper | None:
        """Return the hyperparameter that a value is, or None."""
        return self.algorithm.hyper(value.name) if isinstance(value, Ref) else None

    def visible_names(self) -> Iterator[str]:
        """Yield every name that a rule or a helper may read at this point, for hints."""
        yield from self.kinds if self.helper_values is None else self.helper_values
        yield from self.constants

    def unused_name(self, name: str) -> str:
        """Return the name itself if it is free, else the name with the first free number."""
        taken = {*self.axes, *self.constants, *self.rule_names}
        candidates = (name if n == 1 else f"{name}{n}" for n in range(1, len(taken) + 2))
        return next(c for c in candidates if c not in taken)

    @contextmanager
    def branch(self, truths: frozenset[Condition]) -> Iterator[list[Stmt]]:
        """Collect the statements of one branch in a new list. In the branch, `truths` are known."""
        outer_statements, self.statements = self.statements, []
        known_before, self.known_true = self.known_true, self.known_true | truths
        try:
            yield self.statements
        finally:
            self.statements, self.known_true = outer_statements, known_before


def implied(condition: Expr) -> frozenset[Condition]:
    """Return what holds if a condition is true, such as `amsgrad`, or `eps[0] is given`."""
    match condition:
        case Ref(name) | Call("truth", (Ref(name),)):
            return frozenset((Condition(name),))
        case Call("not", (Ref(name) | Call("truth", (Ref(name),)),)):
            return frozenset((Condition(name, holds=False),))
        case Call("not", (Call("is_none", (value,)),)):
            return frozenset((_is_given(value),))
        case Call("tall", _):
            return frozenset((Condition("tall"), Condition("factored")))
        case Call("within"):
            return frozenset((Condition(str(fact_of(condition))), Condition("factored")))
        case Call(fact, _) if fact in FACTS:
            return frozenset((Condition(fact),))
        case Call("not", (inner,)) if negated := fact_of(inner):
            return frozenset((Condition(negated, holds=False),))
        case Call("and", (a, b)):
            return implied(a) | implied(b)
        case Call("not", (Call("not", (a,)),)):
            return implied(a)
        case Call("not", (Call("or", (a, b)),)):
            return implied(Call("not", (a,))) | implied(Call("not", (b,)))
    return frozenset()


def as_fact(comparison: Call, algorithm: Algorithm) -> Expr:
    """Return a comparison of a size with a limit as the fact that decides about a state, if any."""
    match comparison:
        case Call("<=" | ">", (size, limit)) | Call(">=" | "<", (limit, size)):
            pass
        case _:
            return comparison
    limits = {s.condition.name for s in algorithm.states if s.condition and s.condition.limit}
    fact = Call("within", (size, limit), comparison.place)
    if not isinstance(size, Call) or size.op not in SIDES or fact_of(fact) not in limits:
        return comparison
    return fact if "=" in comparison.op else Call("not", (fact,), comparison.place)


def condition_of_size(text: str, param: str) -> str | None:
    """Return the name of a fact for a text such as "rows(p) <= max_dim", or its negation.

    Return None for any other text.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    match node:
        case ast.Compare(
            left=ast.Call(func=ast.Name(id=side), args=[ast.Name(id=name)], keywords=[]),
            ops=[ast.LtE() | ast.Gt() as op],
            comparators=[ast.Name(id=limit) | ast.Constant(value=int() as limit)],
        ) if side in SIDES and name == param and limit is not True and limit is not False:
            return "not " * isinstance(op, ast.Gt) + size_limit(side, limit)
    return None


def may_be_none(value: Expr, scope: Scope) -> bool:
    """Tell whether a value is a hyperparameter, or an item of one, that may be None here."""
    if isinstance(value, Ref):
        value = scope.items.get(value.name, value)  # a variable may be unpacked from a tuple
    match value:
        case Ref(name):
            index, proofs = 0, {Condition(name)}  # a number that is true is not None
        case Call("item", (Ref(name), Const(int() as index))):
            proofs = set()
        case _:
            return False
    hyper = scope.algorithm.hyper(name)
    if hyper is None or hyper.type not in ("number", "tuple") or not hyper.may_be_none(index):
        return False
    if isinstance(value, Ref) and hyper.type == "tuple":  # a tuple itself is never None
        return False
    return (proofs | {_is_given(value)}).isdisjoint(scope.known_true)


def _is_given(value: Expr) -> Condition:
    """Return the condition that a hyperparameter, or an item of one, is not None."""
    match value:
        case Ref(name):
            return Condition(f"{name} is given")
        case Call("item", (Ref(name), Const(index))):
            return Condition(f"{name}[{index}] is given")
    raise TypeError(f"not a hyperparameter or an item of one: {value!r}")


ValueType = Literal["number", "truth", "tuple", "choice"]
_BOOLEAN_OPS = ("truth", "is_none", "fresh", "within", *FACTS)
SHAPE_NAMES = {
    Axes.NONE: "a number",
    Axes.MATRIX: "a number per matrix",
    Axes.ROW: "a number per row",
    Axes.COLUMN: "a number per column",
    Axes.TENSOR: "a tensor",
    Axes.ROW_T: "a transposed number per row",
    Axes.COLUMN_T: "a transposed number per column",
    Axes.ROWS_ROWS: "a matrix (rows, rows)",
    Axes.COLS_COLS: "a matrix (cols, cols)",
    Axes.TENSOR_T: "a transposed tensor",
    Axes.RANK: "a number per row of a matrix (rank, rank)",
    Axes.RANK_T: "a number per column of a matrix (rank, rank)",
    **{
        axes: f"a matrix {SHAPES[axes]}"
        for axes in (Axes.ROWS_RANK, Axes.COLS_RANK, Axes.RANK_ROWS, Axes.RANK_COLS, Axes.RANK_RANK)
    },
}
"""Descriptions of values that vary along these axes, for error messages."""


def type_of(expr: Expr, scope: Scope) -> ValueType:
    """Return the type of an expression in a scope; "truth" means true or false."""
    match expr:
        case Const(bool()):
            return "truth"
        case Const(value):
            return "number" if is_real(value) else "choice"
        case Ref(name):
            hyper = scope.algorithm.hyper(name)
            if hyper is None:
                return "truth" if name in scope.booleans else "number"
            if hyper.type == "flag":
                return "truth"
            return hyper.type
        case Call(op) if op in _BOOLEAN_OPS or OPS[op].category in ("comparison", "logic"):
            return "truth"
    return "number"


def why_not_a_number(expr: Expr, scope: Scope) -> tuple[str, str]:
    """Return an error message and a hint if an expression is not a number; else ("", "")."""
    match type_of(expr, scope):
        case "truth":
            return "is true or false, not a number", "write an if, or where(condition, a, b)"
        case "tuple":
            return "holds several numbers", "unpack it first: beta1, beta2 = betas"
        case "choice":
            if isinstance(expr, Const):
                return "is not a number", "write a number"
            return "is a choice, not a number", "compare it: == or !=, or `is None`"
    return "", ""
