"""sqrt(a) / sqrt(b) becomes sqrt(a / b): one root less, and one rounding.

Only where neither is ever negative, or two roots that are not numbers would become one that is. The
quotient reaches the ends of the number range before its root does: in float32 with Adadelta's eps,
where gradients are above 1e16.
"""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.nodes import Call, Expr, Linear, Term, rebuild
from optgen.ir.plan import Plan
from optgen.passes.ranges import Ranges, is_not_negative
from optgen.passes.rewrite import map_values
from optgen.passes.scalars import ONE
from optgen.passes.signs import proven_ranges


def join_roots(plan: Plan) -> Plan:
    """The same plan, a root over a root as the root of a quotient."""
    ranges = proven_ranges(plan.algorithm)

    def joined(expr: Expr) -> Expr:
        expr = rebuild(expr, joined)
        if isinstance(expr, Linear):
            return replace(expr, terms=tuple(_joined(term, ranges) for term in expr.terms))
        return expr

    return plan.map_sweeps(lambda body: map_values(body, joined))


def _joined(term: Term, ranges: Ranges) -> Term:
    factors, divisors = list(term.factors), list(term.divisors)
    above = [place for place, f in enumerate(factors) if _is_real_root(f, ranges)]
    below = [divisor for divisor in divisors if _is_real_root(divisor, ranges)]
    for place, divisor in zip(above, below, strict=False):
        factors[place] = _over(factors[place], divisor)
        divisors.remove(divisor)
    return replace(term, factors=tuple(factors), divisors=tuple(divisors))


def _is_real_root(expr: Expr, ranges: Ranges) -> bool:
    return isinstance(expr, Call) and expr.op == "sqrt" and is_not_negative(expr.args[0], ranges)


def _over(root: Expr, divisor: Expr) -> Expr:
    assert isinstance(root, Call)
    assert isinstance(divisor, Call)
    return replace(root, args=(Linear((Term(ONE, root.args, divisor.args),)),))
