"""Tell which rules are computed statement by statement on whole tensors, and which are not fused.

A rule on whole matrices is not cut into sweeps over elements, so no kernel has all of it. A rule
that reduces over several parameters is cut: in C++ a step suspends until all parameters have their
numbers, and in Triton the reduction is a launch of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeGuard

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Call, Expr, If, Program, Ref, expressions, walk
from optgen.ir.ops import DRAWS, FACTS, LINEAR_ALGEBRA, MATRIX_OPS, WIDE_OPS

_OF_ALL_MATRICES = {"sum", "mean", "norm", "rms", "max_abs", "numel", *DRAWS, *WIDE_OPS}
"""The ops whose result for one matrix depends on the whole parameter, or on the matrix's place."""


def why_not_in_triton(algorithm: Algorithm) -> str:
    """Say in a few words why a rule is not lowered to Triton; "" if it is."""
    if reason := why_uncut(algorithm):
        return reason
    known = {h.name for h in algorithm.hypers if h.type in ("flag", "number")}
    known -= {h.name for h in algorithm.hypers if h.tensor != "never"}
    if not all(_is_known(condition, known) for condition in _around_wide(algorithm.rule)):
        return "the rule reduces over several parameters in a branch on computed values"
    return ""


def _around_wide(program: Program, around: tuple[Expr, ...] = ()) -> Iterator[Expr]:
    """Yield the conditions of the branches around reductions over several parameters."""
    for stmt in program:
        if isinstance(stmt, If):
            yield from _around_wide((*stmt.then, *stmt.orelse), (*around, stmt.condition))
        elif any(op in WIDE_OPS for op in _ops(iter((stmt.value,)))):
            yield from around


def _is_known(condition: Expr, hypers: Collection[str]) -> bool:
    """Tell whether a condition reads only these hyperparameters, which the host knows."""
    return all(not isinstance(e, Ref) or e.name in hypers for e in walk(condition))


def why_uncut(algorithm: Algorithm) -> str:
    """Say in a few words why a rule works on whole tensors; "" if it is cut into sweeps."""
    for state in algorithm.matrix_states():
        is_square = state.shape[0] == state.shape[1]
        return f"the state {state.key} is a {'square' if is_square else 'thin'} matrix"
    for op in _ops(expressions(algorithm.rule)):
        if op in LINEAR_ALGEBRA:
            return f"the rule has `{op}`, which takes whole matrices"
    for op in _ops(_in_branches(algorithm.rule)):
        if op in MATRIX_OPS:
            return f"the rule has `{op}` inside a branch"
    arms = dict(_arms(algorithm.rule))
    if len(arms) > 1 and any(arms):
        op = next(op for arm, op in arms.items() if arm)
        return f"parameters of different shapes need `{op}` at different places"
    if algorithm.is_wide:
        for op in _ops(expressions(algorithm.rule)):
            if op in MATRIX_OPS:
                return f"the rule has `{op}`, and reduces over several parameters"
    return ""


def is_by_matrix(algorithm: Algorithm) -> bool:
    """Tell whether each matrix of a parameter steps as it would as a parameter of its own."""
    return _OF_ALL_MATRICES.isdisjoint(_ops(expressions(algorithm.rule)))


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


def _arms(program: Program, within: str = "") -> Iterator[tuple[str, str]]:
    """Yield pairs: the arms of the branches around a matrix op as a text, and the op.

    The text is "" for an op outside of branches.
    """
    for position, stmt in enumerate(program):
        if isinstance(stmt, If):
            for arm, inside in enumerate((stmt.then, stmt.orelse)):
                yield from _arms(inside, f"{within}{position}:{arm} ")
        else:
            yield from ((within, op) for op in _ops(iter((stmt.value,))) if op in MATRIX_OPS)


def _is_decided(condition: Expr) -> bool:
    """Tell whether a condition consists of shape predicates, which are known before a step."""
    match condition:
        case Call(op, _) if op in FACTS:
            return True
        case Call("and" | "or" | "not", args):
            return all(map(_is_decided, args))
    return False
