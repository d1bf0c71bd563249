"""Move reduced numbers from the coefficients of terms to their factors.

In torch a reduced number is a tensor of one element. Reading its value would make the host wait for
the device, so the number multiplies as a tensor factor, not as a scalar.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from optgen.ir.kinds import Axes, Kind, Stage
from optgen.ir.nodes import Call, Expr, Linear, Term, map_values, rebuild
from optgen.ir.plan import Plan
from optgen.passes.linear import ONE, multiply, negate, split_sign

_NUMBER_AS_TENSOR = Kind(Stage.DEVICE, Axes.MATRIX)  # has axes, so that `is_tensor` is true


def coefficients_to_factors(plan: Plan) -> Plan:
    """Return the plan with reduced numbers as factors of their terms."""
    reduced_numbers = {
        ref
        for ref, kind in plan.kinds.items()
        if kind.axes is Axes.NONE and kind.stage is Stage.DEVICE
    }

    def with_factors(expr: Expr) -> Expr:
        expr = rebuild(expr, with_factors)
        if isinstance(expr, Linear):
            return replace(expr, terms=tuple(map(term_with_factors, expr.terms)))
        return expr

    def term_with_factors(term: Term) -> Term:
        is_negative, unsigned = split_sign(term.coefficient)
        operands = list(_product_operands(unsigned))
        new_factors = [operand for operand in operands if operand in reduced_numbers]
        if not new_factors:
            return term
        rest: Expr = ONE
        for operand in operands:
            rest = rest if operand in reduced_numbers else multiply(rest, operand)
        coefficient = negate(rest) if is_negative else rest
        return Term(coefficient, (*term.factors, *new_factors), term.divisors)

    kinds = {**plan.kinds, **dict.fromkeys(reduced_numbers, _NUMBER_AS_TENSOR)}
    return replace(plan.map_sweeps(lambda body: map_values(body, with_factors)), kinds=kinds)


def _product_operands(expr: Expr) -> Iterator[Expr]:
    """Yield the operands of a product, including those of products inside it."""
    match expr:
        case Call("*", (a, b)):
            yield from _product_operands(a)
            yield from _product_operands(b)
        case _:
            yield expr
