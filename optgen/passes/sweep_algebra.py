"""Rewrite the sums of sweeps: fewer operations per element, or results that are more exact.

Each rewrite is about sums of terms `coefficient * factors / divisors`. `passes/all_passes.py` lists
the rewrites of each target, in their order.

    merge_square_roots       sqrt(a) / sqrt(b)        sqrt(a / b)             one root less
    fold_denominators        a / (b / c + d)          a * c / (b + d * c)     one product less
    factor_out_divisors      a / d + b / d            (a + b) / d             one division less
    use_lerp_form            b * m + (1 - b) * g      m + (1 - b) * (g - m)   no drift
    coefficients_to_factors  number, known late       tensor of one element   no wait
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from optgen.ir.kinds import Axes, Kind, Stage
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    Linear,
    Ref,
    Term,
    map_statements,
    map_values,
    rebuild,
)
from optgen.ir.plan import Plan
from optgen.passes.inline_scalars import definitions, expand_definitions
from optgen.passes.linear_forms import ONE, Terms, multiply, negate, split_sign
from optgen.passes.ranges import Ranges, is_not_negative, proven_ranges
from optgen.passes.sums_to_one import sums_to_one


def _map_sums(plan: Plan, change: Callable[[Terms], Terms]) -> Plan:
    """Return the plan with the terms of every sum in its sweeps changed, innermost sums first."""

    def changed(expr: Expr) -> Expr:
        expr = rebuild(expr, changed)
        return replace(expr, terms=change(expr.terms)) if isinstance(expr, Linear) else expr

    return plan.map_sweeps(lambda body: map_values(body, changed))


def _map_terms(plan: Plan, change: Callable[[Term], Term]) -> Plan:
    return _map_sums(plan, lambda terms: tuple(map(change, terms)))


def merge_square_roots(plan: Plan) -> Plan:
    """Return the plan with sqrt(a) / sqrt(b) as sqrt(a / b), with one root and one rounding less.

    Both a and b must be provably nonnegative. Otherwise two NaN roots could become a number. The
    drawback: a / b may overflow although sqrt(a) / sqrt(b) would not. In float32 with Adadelta's
    eps, this happens for gradients above 1e16.
    """
    ranges = proven_ranges(plan.algorithm)

    def merged(term: Term) -> Term:
        factors, divisors = list(term.factors), list(term.divisors)
        roots = [(index, f) for index, f in enumerate(factors) if _is_real_root(f, ranges)]
        divisor_roots = [divisor for divisor in divisors if _is_real_root(divisor, ranges)]
        for (index, root), divisor in zip(roots, divisor_roots, strict=False):
            assert isinstance(root, Call)
            assert isinstance(divisor, Call)
            factors[index] = replace(root, args=(Linear((Term(ONE, root.args, divisor.args),)),))
            divisors.remove(divisor)
        return replace(term, factors=tuple(factors), divisors=tuple(divisors))

    return _map_terms(plan, merged)


def _is_real_root(expr: Expr, ranges: Ranges) -> bool:
    """Tell whether an expression is the root of a provably nonnegative value."""
    return isinstance(expr, Call) and expr.op == "sqrt" and is_not_negative(expr.args[0], ranges)


def fold_denominators(plan: Plan) -> Plan:
    """Return the plan with a / (b / c + d) as a * c / (b + d * c), where c and d are scalars.

    This saves one multiplication per element. Only rounding changes. A term whose coefficient
    depends on a reduction stays as it is, because the scalar program would have to multiply the
    coefficient, and runs before the reduction.
    """

    def has_scalar_coefficient(term: Term) -> bool:
        return plan.kind(term.coefficient).is_scalar

    def folded(term: Term) -> Term:
        if not has_scalar_coefficient(term):
            return term
        coefficient = term.coefficient
        divisors: list[Expr] = []
        for divisor in term.divisors:
            match divisor:
                case Linear((Term(Call("/", (Const(1), scale))) as first, *others)) if all(
                    map(has_scalar_coefficient, others)
                ):
                    rest = (replace(t, coefficient=multiply(t.coefficient, scale)) for t in others)
                    terms = (replace(first, coefficient=ONE), *rest)
                    divisors.append(replace(divisor, terms=terms))
                    coefficient = multiply(coefficient, scale)
                case _:
                    divisors.append(divisor)
        return replace(term, coefficient=coefficient, divisors=tuple(divisors))

    return _map_terms(plan, folded)


def factor_out_divisors(plan: Plan) -> Plan:
    """Return the plan with a / d + b / d as (a + b) / d, one division less per element."""
    return _map_sums(plan, _with_common_divisors)


def _with_common_divisors(terms: Terms) -> Terms:
    by_divisors: dict[tuple[Expr, ...], list[Term]] = {}
    for index, term in enumerate(terms):
        key = term.divisors or (Const(index),)  # a term without divisors gets a key of its own
        by_divisors.setdefault(key, []).append(term)
    return tuple(map(_over_common_divisors, by_divisors.values()))


def _over_common_divisors(terms: list[Term]) -> Term:
    """Return the sum of terms with equal divisors; if all are negative, with a minus in front."""
    if len(terms) == 1:
        return terms[0]
    all_negative = all(is_negative for is_negative, _ in (split_sign(t.coefficient) for t in terms))
    numerators = tuple(
        Term(negate(t.coefficient) if all_negative else t.coefficient, t.factors) for t in terms
    )
    return Term(Const(-1 if all_negative else 1), (Linear(numerators),), terms[0].divisors)


def use_lerp_form(plan: Plan) -> Plan:
    """Return the plan with each average of a state's old value and another tensor in lerp form.

    The average b * m + (1 - b) * g becomes m + (1 - b) * (g - m). In float32 the rounded b and the
    rounded 1 - b do not add up to 1, so a state that is averaged in every step drifts. The lerp
    form has one coefficient and does not drift. torch's lerp uses it too.
    """
    stored = {s.name for sweep in plan.sweeps for s in sweep.streams if s.stored}
    definition_of = definitions(plan)

    def changed(stmt: Assign) -> Assign:
        if stmt.target.name not in stored:
            return stmt
        return replace(stmt, value=_in_lerp_form(stmt.target.name, stmt.value, definition_of))

    return plan.map_sweeps(lambda body: map_statements(body, changed))


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


_NUMBER_AS_TENSOR = Kind(Stage.DEVICE, Axes.MATRIX)  # has axes, so that `is_tensor` is true


def coefficients_to_factors(plan: Plan) -> Plan:
    """Return the plan with reduced numbers as factors of their terms.

    In torch a reduced number is a tensor of one element. Reading its value would make the host wait
    for the device, so the number multiplies as a tensor factor, not as a scalar.
    """
    reduced_numbers = {
        ref
        for ref, kind in plan.kinds.items()
        if kind.axes is Axes.NONE and kind.stage is Stage.DEVICE
    }

    def with_factors(term: Term) -> Term:
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
    return replace(_map_terms(plan, with_factors), kinds=kinds)


def _product_operands(expr: Expr) -> Iterator[Expr]:
    """Yield the operands of a product, including those of products inside it."""
    match expr:
        case Call("*", (a, b)):
            yield from _product_operands(a)
            yield from _product_operands(b)
        case _:
            yield expr
