"""Makes the truth of a number True or False where a value asks for it.

torch takes neither None nor 3.0 for a truth value. At an `if`, Python takes both.
"""

from __future__ import annotations

from optgen.ir.nodes import Call, Expr, rebuild
from optgen.ir.plan import Plan
from optgen.passes.rewrite import map_values


def truths_to_bool(plan: Plan) -> Plan:
    """Return the same plan with the word `holds` for every truth that a value asks for."""
    return plan.map_programs(lambda program: map_values(program, _held))


def _held(expr: Expr) -> Expr:
    expr = rebuild(expr, _held)
    match expr:
        case Call("truth", args):
            return Call("holds", args, expr.place)
    return expr
