"""Move scales out of denominators: a / (b / c + d) becomes a * c / (b + d * c).

Here c and d are scalars. This saves one multiplication per tensor element. Only rounding changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from optgen.ir.kinds import kind_of
from optgen.ir.nodes import Call, Const, Expr, Linear, Term, map_values, rebuild
from optgen.ir.plan import Plan
from optgen.passes.linear import ONE, multiply


def fold_denominators(plan: Plan) -> Plan:
    """Return the plan with the leading scale of every denominator moved into the coefficient.

    A term whose coefficient depends on a reduction stays as it is, because the scalar program would
    have to multiply the coefficient, and runs before the reduction.
    """

    def has_scalar_coefficient(term: Term) -> bool:
        return kind_of(term.coefficient, plan.kinds.__getitem__).is_scalar

    def fold(expr: Expr) -> Expr:
        expr = rebuild(expr, fold)
        if isinstance(expr, Linear):
            terms = (
                _fold_term(t, has_scalar_coefficient) if has_scalar_coefficient(t) else t
                for t in expr.terms
            )
            return replace(expr, terms=tuple(terms))
        return expr

    return plan.map_sweeps(lambda body: map_values(body, fold))


def _fold_term(term: Term, has_scalar_coefficient: Callable[[Term], bool]) -> Term:
    coefficient = term.coefficient
    divisors: list[Expr] = []
    for divisor in term.divisors:
        match divisor:
            case Linear((Term(Call("/", (Const(1), scale))) as first, *others)) if all(
                map(has_scalar_coefficient, others)
            ):
                rest = (replace(t, coefficient=multiply(t.coefficient, scale)) for t in others)
                divisors.append(replace(divisor, terms=(replace(first, coefficient=ONE), *rest)))
                coefficient = multiply(coefficient, scale)
            case _:
                divisors.append(divisor)
    return replace(term, coefficient=coefficient, divisors=tuple(divisors))
