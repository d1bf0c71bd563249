"""Look up the definitions of scalar names, and substitute them into expressions."""

from __future__ import annotations

from optgen.ir.nodes import Expr, Ref, assigns, on_every_path, rebuild
from optgen.ir.plan import Plan

_MAX_NODES = 1000
"""The number of nodes after which no more names are replaced."""


def definitions(plan: Plan) -> dict[Ref, Expr]:
    """Return the definition of every scalar that has exactly one.

    Several branches may repeat the same definition. A name that only one side of a branch assigns
    has two definitions if it had a value before the branch, because the other side keeps that
    value.
    """
    values: dict[Ref, Expr] = {}
    ambiguous: set[Ref] = set()
    for stmt in assigns(plan.scalars):
        if values.get(stmt.target, stmt.value) != stmt.value:
            ambiguous.add(stmt.target)
        values[stmt.target] = stmt.value
    always = on_every_path(plan.scalars, lambda target: target)
    states = {state.symbol for state in plan.algorithm.scalar_states()}
    names = [ref.name for ref in values]
    ambiguous |= {
        ref
        for ref in values.keys() - always
        if ref.name in states or names.count(ref.name) > 1  # the name had a value before
    }
    return {ref: value for ref, value in values.items() if ref not in ambiguous}


def expand_definitions(expr: Expr, definitions_by_name: dict[Ref, Expr]) -> Expr:
    """Return an expression with each of these names replaced by its definition, recursively.

    If the result would be very large, the last names stay: in `x = x * (x + 1)`, written forty
    times, the first `x` occurs in the last one 2**40 times.
    """
    num_nodes = 0

    def expanded(expr: Expr) -> Expr:
        nonlocal num_nodes
        num_nodes += 1
        if isinstance(expr, Ref) and expr in definitions_by_name and num_nodes < _MAX_NODES:
            return expanded(definitions_by_name[expr])
        return rebuild(expr, expanded)

    return expanded(expr)
