"""Warn of a rule that reduces a whole parameter beside words that act on each of its matrices.

A parameter with three axes is a batch of matrices. `orthogonalize` acts on each of them, and `norm`
is one number for all of them. So the step of a batch differs from the steps of its matrices.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Call, Const, Expr, If, Program, children, walk
from optgen.ir.ops import AXIS_REDUCTIONS, LINEAR_ALGEBRA, MATRIX_OPS, REDUCTIONS, WIDE_OPS
from optgen.spec.errors import SpecError

_BATCH_AXES = 3
_WHOLE_REDUCTIONS = frozenset(REDUCTIONS).difference(AXIS_REDUCTIONS)
_ON_EACH_MATRIX = frozenset((*MATRIX_OPS, *LINEAR_ALGEBRA)).difference(
    ("transpose", "identity", "diag", "gaussian")
)
"""Words whose result for a batch depends on which elements form a matrix."""

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def batch_warning(algorithm: Algorithm) -> SpecError | None:
    """Return a warning at the first such reduction, or None if a batch steps as its matrices do."""
    if any(_value_for_batch(require.condition) is False for require in algorithm.requires):
        return None
    exprs = list(_run_for_batch(algorithm.rule))
    nodes = [node for expr in exprs for node in walk(expr) if isinstance(node, Call)]
    words = [node.op for node in nodes if node.op in _ON_EACH_MATRIX]
    reductions = [node for expr in exprs for node in _whole_reductions(expr)]
    if not words or not reductions:
        return None
    name, param = reductions[0].op, algorithm.param
    message = f"warning: `{name}` reduces all matrices of a batch, and `{words[0]}` acts on each"
    hint = f"if only matrices come: require(ndim({param}) == 2, …); a norm of each matrix is "
    hint += "sqrt(trace(x @ transpose(x)))"
    return SpecError(reductions[0].place, message, hint, algorithm.source)


def _run_for_batch(program: Program) -> Iterator[Expr]:
    """Yield the values of the statements that a batch may run."""
    for stmt in program:
        if isinstance(stmt, If):
            answer = _value_for_batch(stmt.condition)
            yield from _run_for_batch(stmt.then if answer is not False else ())
            yield from _run_for_batch(stmt.orelse if answer is not True else ())
        else:
            yield stmt.value


def _whole_reductions(expr: Expr) -> Iterator[Call]:
    """Yield reductions to one number for each parameter, but none over several parameters."""
    if isinstance(expr, Call) and expr.op in _WHOLE_REDUCTIONS:
        yield expr
    for child in children(expr) if not (isinstance(expr, Call) and expr.op in WIDE_OPS) else ():
        yield from _whole_reductions(child)


def _value_for_batch(expr: Expr) -> object:
    """Return the value of a condition for a parameter of three axes; None if it is unknown."""
    match expr:
        case Const(value):
            return value
        case Call("ndim", _):
            return _BATCH_AXES
        case Call("factored", _):
            return True
        case Call("not", (inner,)):
            answer = _value_for_batch(inner)
            return None if answer is None else not answer
        case Call("and" | "or" as word, args):
            values = [_value_for_batch(arg) for arg in args]
            deciding = word == "or"
            known = None if None in values else not deciding
            return deciding if deciding in values else known
        case Call(word, (a, b)) if word in _COMPARISONS:
            left, right = _value_for_batch(a), _value_for_batch(b)
            return None if None in (left, right) else _COMPARISONS[word](left, right)
    return None
