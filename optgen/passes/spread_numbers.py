"""A number that a reduction left is a tensor to torch: it multiplies as a factor, not as a scalar.

Reading it would make the host wait for the device, so it stays a tensor of one element.
"""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.kinds import Axes, Home, Kind
from optgen.ir.nodes import Const, Expr, Linear, Ref, Term, rebuild
from optgen.ir.plan import Plan
from optgen.passes.rewrite import map_values
from optgen.passes.scalars import ONE, unsigned

_AS_A_TENSOR = Kind(Home.DEVICE, Axes.MATRIX)


def spread_numbers(plan: Plan) -> Plan:
    """The same plan with such coefficients among the factors of their terms."""
    late = {
        ref
        for ref, kind in plan.kinds.items()
        if kind.axes is Axes.NONE and kind.home is Home.DEVICE
    }

    def spread(expr: Expr) -> Expr:
        expr = rebuild(expr, spread)
        if isinstance(expr, Linear):
            return replace(expr, terms=tuple(map(_spread_term, expr.terms)))
        return expr

    def _spread_term(term: Term) -> Term:
        minus, bare = unsigned(term.coefficient)
        if not (isinstance(bare, Ref) and bare in late):
            return term
        return Term(Const(-1) if minus else ONE, (*term.factors, bare), term.divisors)

    kinds = {**plan.kinds, **dict.fromkeys(late, _AS_A_TENSOR)}
    return replace(plan.map_sweeps(lambda body: map_values(body, spread)), kinds=kinds)
