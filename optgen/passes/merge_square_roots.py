"""Merge square roots: sqrt(a) / sqrt(b) becomes sqrt(a / b), with one root and one rounding less.

Both a and b must be provably nonnegative. Otherwise two NaN roots could become a number. The
drawback: a / b may overflow although sqrt(a) / sqrt(b) would not. In float32 with Adadelta's eps,
this happens for gradients above 1e16.
"""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.nodes import Call, Expr, Linear, Term, map_values, rebuild
from optgen.ir.plan import Plan
from optgen.passes.linear import ONE
from optgen.passes.ranges import Ranges, is_not_negative, proven_ranges


def merge_square_roots(plan: Plan) -> Plan:
    """Return the plan with every root over a root replaced by the root of the quotient."""
    ranges = proven_ranges(plan.algorithm)

    def merged(expr: Expr) -> Expr:
        expr = rebuild(expr, merged)
        if isinstance(expr, Linear):
            return replace(expr, terms=tuple(_merged(term, ranges) for term in expr.terms))
        return expr

    return plan.map_sweeps(lambda body: map_values(body, merged))


def _merged(term: Term, ranges: Ranges) -> Term:
    factors, divisors = list(term.factors), list(term.divisors)
    root_indices = [index for index, f in enumerate(factors) if _is_real_root(f, ranges)]
    divisor_roots = [divisor for divisor in divisors if _is_real_root(divisor, ranges)]
    for index, divisor in zip(root_indices, divisor_roots, strict=False):
        factors[index] = _root_of_quotient(factors[index], divisor)
        divisors.remove(divisor)
    return replace(term, factors=tuple(factors), divisors=tuple(divisors))


def _is_real_root(expr: Expr, ranges: Ranges) -> bool:
    """Tell whether an expression is the root of a provably nonnegative value."""
    return isinstance(expr, Call) and expr.op == "sqrt" and is_not_negative(expr.args[0], ranges)


def _root_of_quotient(root: Expr, divisor: Expr) -> Expr:
    """Return the quotient of two roots as one root."""
    assert isinstance(root, Call)
    assert isinstance(divisor, Call)
    return replace(root, args=(Linear((Term(ONE, root.args, divisor.args),)),))
