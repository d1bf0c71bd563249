"""Factor out common divisors: a / d + b / d becomes (a + b) / d, one division less per element."""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.nodes import Const, Expr, Linear, Term, map_values, rebuild
from optgen.ir.plan import Plan
from optgen.passes.linear import negate, split_sign


def factor_out_divisors(plan: Plan) -> Plan:
    """Return the plan with terms over equal divisors added before they are divided."""
    return plan.map_sweeps(lambda body: map_values(body, _factored_out))


def _factored_out(expr: Expr) -> Expr:
    expr = rebuild(expr, _factored_out)
    if not isinstance(expr, Linear):
        return expr
    by_divisors: dict[tuple[Expr, ...], list[Term]] = {}
    for index, term in enumerate(expr.terms):
        key = term.divisors or (Const(index),)  # a term without divisors gets a key of its own
        by_divisors.setdefault(key, []).append(term)
    return replace(expr, terms=tuple(map(_over_common_divisors, by_divisors.values())))


def _over_common_divisors(terms: list[Term]) -> Term:
    """Return the sum of terms with equal divisors; if all are negative, with a minus in front."""
    if len(terms) == 1:
        return terms[0]
    all_negative = all(is_negative for is_negative, _ in (split_sign(t.coefficient) for t in terms))
    numerators = tuple(
        Term(negate(t.coefficient) if all_negative else t.coefficient, t.factors) for t in terms
    )
    return Term(Const(-1 if all_negative else 1), (Linear(numerators),), terms[0].divisors)
