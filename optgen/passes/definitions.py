"""What scalar names stand for: their definitions, written out in full."""

from __future__ import annotations

from optgen.ir.nodes import Expr, Ref, assigns, rebuild
from optgen.ir.plan import Plan


def definitions(plan: Plan) -> dict[Ref, Expr]:
    """Return every scalar with one definition, be it in several branches, and what it is."""
    found: dict[Ref, Expr] = {}
    several: set[Ref] = set()
    for stmt in assigns(plan.scalars):
        if found.get(stmt.target, stmt.value) != stmt.value:
            several.add(stmt.target)
        found[stmt.target] = stmt.value
    return {ref: value for ref, value in found.items() if ref not in several}


def written_out(expr: Expr, known: dict[Ref, Expr]) -> Expr:
    """An expression with every known name replaced by its definition, all the way down."""
    if isinstance(expr, Ref) and expr in known:
        return written_out(known[expr], known)
    return rebuild(expr, lambda e: written_out(e, known))
