"""Factor out common divisors: a / d + b / d becomes (a + b) / d, one division less per element."""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.nodes import Const, Expr, Linear, Term, rebuild
from optgen.ir.plan import Plan
from optgen.passes.rewrite import map_values
from optgen.passes.scalar_arithmetic import negate, unsigned


def factor_out_divisors(plan: Plan) -> Plan:
    """Return the plan with terms over equal divisors added before they are divided."""
    return plan.map_sweeps(lambda body: map_values(body, _share))


def _share(expr: Expr) -> Expr:
    expr = rebuild(expr, _share)
    if not isinstance(expr, Linear):
        return expr
    together: dict[tuple[Expr, ...], list[Term]] = {}
    for number, term in enumerate(expr.terms):
        key = term.divisors or (Const(number),)  # terms without divisors stay apart
        together.setdefault(key, []).append(term)
    return replace(expr, terms=tuple(map(_one, together.values())))


def _one(terms: list[Term]) -> Term:
    """Return the sum of terms over equal divisors; a minus that all have is factored out."""
    if len(terms) == 1:
        return terms[0]
    minus = all(unsigned(t.coefficient)[0] for t in terms)
    above = tuple(Term(negate(t.coefficient) if minus else t.coefficient, t.factors) for t in terms)
    return Term(Const(-1 if minus else 1), (Linear(above),), terms[0].divisors)
