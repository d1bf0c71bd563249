"""Tell which rules are computed statement by statement on whole tensors, and which are not fused.

A rule on whole matrices is not cut into sweeps over elements, so it has no fused lowering. A rule
with numbers of several parameters is cut: a C++ step suspends until all parameters have theirs, and
a Triton step has one more launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Call, Expr, If, Program, expressions, walk
from optgen.ir.ops import FACTS, LINEAR_ALGEBRA, MATRIX_OPS, WIDE_OPS


def why_not_in_triton(algorithm: Algorithm) -> str:
    """Say in a few words why a rule is not lowered to Triton; "" if it is."""
    if whole := why_uncut(algorithm):
        return whole
    for op in _ops(_in_branches(algorithm.rule)):
        if op in WIDE_OPS:
            return "the rule reduces over several parameters inside a branch"
    return ""


def why_uncut(algorithm: Algorithm) -> str:
    """Say in a few words why a rule works on whole tensors; "" if it is cut into sweeps."""
    for state in algorithm.matrix_states():
        square = state.shape[0] == state.shape[1]
        return f"the state {state.key} is a {'square' if square else 'thin'} matrix"
    for op in _ops(expressions(algorithm.rule)):
        if op in LINEAR_ALGEBRA:
            return f"the rule has `{op}`, which takes whole matrices"
    for op in _ops(_in_branches(algorithm.rule)):
        if op in MATRIX_OPS:
            return f"the rule has `{op}` inside a branch"
    if algorithm.is_wide:
        for op in _ops(expressions(algorithm.rule)):
            if op in MATRIX_OPS:
                return f"the rule has `{op}` beside numbers of several parameters"
    return ""


def is_wide(value: Expr) -> TypeGuard[Call]:
    """Tell whether a value is a reduction over several parameters."""
    return isinstance(value, Call) and value.op in WIDE_OPS


def _ops(exprs: Iterator[Expr]) -> Iterator[str]:
    return (node.op for expr in exprs for node in walk(expr) if isinstance(node, Call))


def _in_branches(program: Program) -> Iterator[Expr]:
    """Yield the expressions inside branches, except those on shape predicates alone."""
    for stmt in program:
        if isinstance(stmt, If):
            inside = (*stmt.then, *stmt.orelse)
            yield from _in_branches(inside) if _is_decided(stmt.condition) else expressions(inside)


def _is_decided(condition: Expr) -> bool:
    """Tell whether a condition is made of shape predicates only: it is known before a step."""
    match condition:
        case Call(op, _) if op in FACTS:
            return True
        case Call("and" | "or" | "not", args):
            return all(map(_is_decided, args))
    return False
