"""Tell how a rule's words let it be executed: on whole tensors, by which kernels, in which dtype.

A rule on whole matrices is not cut into sweeps over elements, so no kernel computes all of it. A
rule that reduces over several parameters is cut: in C++ a step suspends until all parameters have
their numbers, and in Triton the reduction is a launch of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeGuard

from optgen.ir.algorithm import Algorithm, fact_of
from optgen.ir.nodes import Call, Expr, If, Program, Ref, expressions, walk
from optgen.ir.ops import DRAWING_OPS, LINEAR_ALGEBRA, MATRIX_OPS, WIDE_OPS

_OPS_ACROSS_MATRICES = {"sum", "mean", "norm", "rms", "max_abs", "numel", *DRAWING_OPS, *WIDE_OPS}
"""Ops whose result for a matrix depends on other matrices of the parameter, or on its position."""


def why_reductions_not_in_triton(algorithm: Algorithm) -> str:
    """Say in a few words why Triton cannot reduce over several parameters; "" if it can."""
    known_to_host = {
        h.name for h in algorithm.hypers if h.type in ("flag", "number") and h.tensor == "never"
    }
    if not all(
        _reads_only(condition, known_to_host)
        for condition in _conditions_around_wide(algorithm.rule)
    ):
        return "the rule reduces over several parameters in a branch on computed values"
    return ""


def _conditions_around_wide(program: Program, around: tuple[Expr, ...] = ()) -> Iterator[Expr]:
    """Yield the conditions of the branches around reductions over several parameters."""
    for stmt in program:
        if isinstance(stmt, If):
            yield from _conditions_around_wide(
                (*stmt.then, *stmt.orelse), (*around, stmt.condition)
            )
        elif any(op in WIDE_OPS for op in _ops(iter((stmt.value,)))):
            yield from around


def _reads_only(condition: Expr, hypers: Collection[str]) -> bool:
    """Tell whether a condition reads no names but these hyperparameters."""
    return all(not isinstance(e, Ref) or e.name in hypers for e in walk(condition))


def why_whole(algorithm: Algorithm) -> str:
    """Say in a few words why a rule's words keep it whole; "" if a cut can be tried.

    `why_uncut` in `optgen/passes/plan_rule.py` tries the cut, and also says what forbids it.
    """
    for state in algorithm.matrix_states():
        is_square = state.shape[0] == state.shape[1]
        return f"the state {state.key} is a {'square' if is_square else 'thin'} matrix"
    for op in _ops(expressions(algorithm.rule)):
        if op in LINEAR_ALGEBRA:
            return f"the rule has `{op}`, which takes whole matrices"
    for op in _ops(_expressions_in_branches(algorithm.rule)):
        if op in MATRIX_OPS:
            return f"the rule has `{op}` inside a branch"
    op_by_arm = dict(_matrix_ops_by_arm(algorithm.rule))
    if len(op_by_arm) > 1 and any(op_by_arm):
        op = next(op for arm, op in op_by_arm.items() if arm)
        return f"parameters of different shapes need `{op}` at different places"
    if algorithm.is_wide:
        for op in _ops(expressions(algorithm.rule)):
            if op in MATRIX_OPS:
                return f"the rule has `{op}`, and reduces over several parameters"
    return ""


def updates_matrices_independently(algorithm: Algorithm) -> bool:
    """Tell whether a step updates each matrix of a parameter as if it were a whole parameter."""
    return _OPS_ACROSS_MATRICES.isdisjoint(_ops(expressions(algorithm.rule)))


def is_wide(value: Expr) -> TypeGuard[Call]:
    """Tell whether a value is a reduction over several parameters."""
    return isinstance(value, Call) and value.op in WIDE_OPS


def _ops(exprs: Iterator[Expr]) -> Iterator[str]:
    return (node.op for expr in exprs for node in walk(expr) if isinstance(node, Call))


def _expressions_in_branches(program: Program) -> Iterator[Expr]:
    """Yield the expressions inside branches that are not on shape predicates alone."""
    for stmt in program:
        if isinstance(stmt, If):
            inside = (*stmt.then, *stmt.orelse)
            yield from (
                _expressions_in_branches(inside)
                if _is_about_shape(stmt.condition)
                else expressions(inside)
            )


def _matrix_ops_by_arm(program: Program, within: str = "") -> Iterator[tuple[str, str]]:
    """Yield each matrix op after a text that identifies the branches and arms around it.

    The text is "" for an op outside of branches.
    """
    for position, stmt in enumerate(program):
        if isinstance(stmt, If):
            for arm, inside in enumerate((stmt.then, stmt.orelse)):
                yield from _matrix_ops_by_arm(inside, f"{within}{position}:{arm} ")
        else:
            yield from ((within, op) for op in _ops(iter((stmt.value,))) if op in MATRIX_OPS)


def _is_about_shape(condition: Expr) -> bool:
    """Tell whether a condition consists of shape predicates, which a plan is specialized for."""
    match condition:
        case Call("and" | "or" | "not", args):
            return all(map(_is_about_shape, args))
    return fact_of(condition) is not None


def widens(algorithm: Algorithm) -> bool:
    """Tell whether every lowering computes in float32 or wider, whatever the tensors' dtypes.

    The lowerings do so if the rule rounds values to the parameter's dtype or draws random numbers,
    or if a state that is not "scalar" declares a dtype.
    """
    declares_dtype = any(state.dtype and state.shape != "scalar" for state in algorithm.states)
    return declares_dtype or algorithm.has_storage_ops or algorithm.has_random_ops
