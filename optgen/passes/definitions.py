"""Look up the definitions of scalar names, and substitute them into expressions."""

from __future__ import annotations

from optgen.ir.nodes import Expr, Ref, assigns, on_every_path, rebuild
from optgen.ir.plan import Plan


def definitions(plan: Plan) -> dict[Ref, Expr]:
    """Return the definition of every scalar that has exactly one.

    Several branches may repeat the same definition. A name that only one side of a branch assigns
    has two definitions if it had a value before, which the other side keeps.
    """
    found: dict[Ref, Expr] = {}
    several: set[Ref] = set()
    for stmt in assigns(plan.scalars):
        if found.get(stmt.target, stmt.value) != stmt.value:
            several.add(stmt.target)
        found[stmt.target] = stmt.value
    always = on_every_path(plan.scalars, lambda target: target)
    states = {state.symbol for state in plan.algorithm.scalar_states()}
    names = [ref.name for ref in found]
    several |= {
        ref
        for ref in found.keys() - always
        if ref.name in states or names.count(ref.name) > 1  # the name had a value before
    }
    return {ref: value for ref, value in found.items() if ref not in several}


def expand_definitions(expr: Expr, known: dict[Ref, Expr]) -> Expr:
    """Return an expression with every known name replaced by its definition, recursively."""
    if isinstance(expr, Ref) and expr in known:
        return expand_definitions(known[expr], known)
    return rebuild(expr, lambda e: expand_definitions(e, known))
