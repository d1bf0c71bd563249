"""Convert the truth of a number to a bool where it is part of a value.

In a value, torch accepts neither None nor 3.0 as true or false. A Python `if` accepts both, so
conditions of branches stay as they are.
"""

from __future__ import annotations

from optgen.ir.nodes import Call, Expr, map_values, rebuild
from optgen.ir.plan import Plan


def truths_to_bool(plan: Plan) -> Plan:
    """Return the plan with the op `holds` in place of every `truth` inside a value."""
    return plan.map_programs(lambda program: map_values(program, _with_holds))


def _with_holds(expr: Expr) -> Expr:
    expr = rebuild(expr, _with_holds)
    match expr:
        case Call("truth", args):
            return Call("holds", args, expr.place)
    return expr
