"""What scalar names stand for: their definitions, written out in full."""

from __future__ import annotations

from optgen.ir.nodes import Expr, Ref, assigns, rebuild
from optgen.ir.plan import Plan


def definitions(plan: Plan) -> dict[Ref, Expr]:
    """Every scalar that has one definition, in terms of inputs and of scalars that have several."""
    found: dict[Ref, Expr] = {}
    several: set[Ref] = set()
    for stmt in assigns(plan.scalars):
        if stmt.target in found:
            several.add(stmt.target)
        found[stmt.target] = stmt.value
    return {ref: value for ref, value in found.items() if ref not in several}


def written_out(expr: Expr, known: dict[Ref, Expr]) -> Expr:
    """An expression with every known name replaced by its definition, all the way down."""
    if isinstance(expr, Ref) and expr in known:
        return written_out(known[expr], known)
    return rebuild(expr, lambda e: written_out(e, known))
