"""Rewrite running averages in lerp form: b * m + (1 - b) * g becomes m + (1 - b) * (g - m).

In float32 the rounded b and the rounded 1 - b do not add up to 1, so a state that is averaged in
every step drifts. The lerp form has one coefficient and does not drift. torch's lerp uses it too.
"""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.nodes import Assign, Const, Expr, If, Linear, Program, Ref, Term
from optgen.ir.plan import Plan
from optgen.passes.algebra import sums_to_one
from optgen.passes.inline_scalars import definitions, expand_definitions
from optgen.passes.linear import ONE


def use_lerp_form(plan: Plan) -> Plan:
    """Return the plan with each average of a state's old value and another tensor in lerp form."""
    stored = {s.name for sweep in plan.sweeps for s in sweep.streams if s.stored}
    definition_of = definitions(plan)

    def changed_program(body: Program) -> Program:
        return tuple(map(changed, body))

    def changed(stmt: Assign | If) -> Assign | If:
        if isinstance(stmt, If):
            then, orelse = changed_program(stmt.then), changed_program(stmt.orelse)
            return replace(stmt, then=then, orelse=orelse)
        if stmt.target.name not in stored:
            return stmt
        return replace(stmt, value=_in_lerp_form(stmt.target.name, stmt.value, definition_of))

    return plan.map_sweeps(changed_program)


def _in_lerp_form(name: str, value: Expr, definition_of: dict[Ref, Expr]) -> Expr:
    """Return a value in lerp form if it is an average of the old value of the name."""
    match value:
        case Linear((Term(_, (Ref(),), ()) as first, Term(_, (Ref(),), ()) as second)):
            pass
        case _:
            return value
    old, other = (first, second) if _is_multiple_of(name, first) else (second, first)
    old_weight, other_weight = (
        expand_definitions(term.coefficient, definition_of) for term in (old, other)
    )
    if not _is_multiple_of(name, old) or not sums_to_one(old_weight, other_weight):
        return value
    difference = Linear((Term(ONE, other.factors), Term(Const(-1), old.factors)))
    return replace(value, terms=(Term(ONE, old.factors), Term(other.coefficient, (difference,))))


def _is_multiple_of(name: str, term: Term) -> bool:
    """Tell whether a term with one factor is a multiple of a name."""
    (factor,) = term.factors
    return isinstance(factor, Ref) and factor.name == name
