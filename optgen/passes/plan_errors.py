"""Errors for rules that no plan can execute."""

from __future__ import annotations

from optgen.ir.algorithm import Algorithm
from optgen.ir.errors import RuleError
from optgen.ir.nodes import Call, Program, assigns, walk
from optgen.ir.ops import MATRIX_OPS
from optgen.passes.specialize_shape import Facts


def circular_matrix_op(program: Program) -> RuleError | None:
    """Return the error for a circular dependency; None if the program has no matrix op."""
    for stmt in assigns(program):
        for call in walk(stmt.value):
            if isinstance(call, Call) and call.op in MATRIX_OPS:
                return RuleError(
                    call.place,
                    f"`{call.op}` and a value that is read after it depend on each other",
                    f"numbers, rows and columns are not kept across `{call.op}`: assign a row or "
                    f"column state after `{call.op}`",
                )
    return None


def changes_nothing(algorithm: Algorithm, facts: Facts) -> RuleError:
    """Return the error for a rule that gives no tensor a new value."""
    cases = " and ".join(fact if holds else f"not {fact}" for fact, holds in facts.items())
    return RuleError(
        algorithm.place,
        "the rule changes no tensor" + (f" of parameters that are {cases}" if cases else ""),
        f"{algorithm.param} = …, the update",
    )
