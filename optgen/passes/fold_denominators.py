"""a / (b / c + d) becomes a * c / (b + d * c): one scaling of a whole tensor less.

Rounding changes in the last digits; what is divided by is the same number up to them.
"""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.nodes import Call, Const, Expr, Linear, Program, Term, rebuild
from optgen.ir.plan import Plan
from optgen.passes.rewrite import map_values
from optgen.passes.scalars import ONE, multiply


def fold_denominators(plan: Plan) -> Plan:
    """The same plan with the leading scale of every denominator moved into the coefficient."""
    return plan.map_sweeps(_folded)


def _folded(body: Program) -> Program:
    return map_values(body, _fold)


def _fold(expr: Expr) -> Expr:
    expr = rebuild(expr, _fold)
    if isinstance(expr, Linear):
        return replace(expr, terms=tuple(_fold_term(t) for t in expr.terms))
    return expr


def _fold_term(term: Term) -> Term:
    coefficient = term.coefficient
    divisors: list[Expr] = []
    for divisor in term.divisors:
        match divisor:
            case Linear((Term(Call("/", (Const(1), scale))) as first, *others)):
                rest = (replace(t, coefficient=multiply(t.coefficient, scale)) for t in others)
                divisors.append(replace(divisor, terms=(replace(first, coefficient=ONE), *rest)))
                coefficient = multiply(coefficient, scale)
            case _:
                divisors.append(divisor)
    return replace(term, coefficient=coefficient, divisors=tuple(divisors))
