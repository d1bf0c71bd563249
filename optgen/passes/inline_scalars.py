"""A short scalar used once is written where it is used: `1 - beta1` says more than a name."""

from __future__ import annotations

from collections import Counter

from optgen.ir.nodes import (
    Call,
    Const,
    Expr,
    Program,
    Ref,
    assigns,
    expressions,
    rebuild,
    refs,
    walk,
)
from optgen.ir.plan import Plan
from optgen.passes.definitions import definitions
from optgen.passes.rewrite import filter_assigns, map_values
from optgen.passes.scalars import is_number

_LONGEST = 2  # operators


def inline_scalars(plan: Plan) -> Plan:
    """The same plan with the generator's own short scalars written into the one place they serve.

    Names of the author stay; so does what a rewritten scalar state would change.
    """
    inlined = _chosen(plan)

    def change(expr: Expr) -> Expr:
        if isinstance(expr, Ref) and expr in inlined:
            return change(inlined[expr])
        return rebuild(expr, change)

    def shorter(program: Program) -> Program:
        return map_values(filter_assigns(program, lambda a: a.target not in inlined), change)

    return plan.map_programs(shorter)


def _chosen(plan: Plan) -> dict[Ref, Expr]:
    uses = Counter(r for e in (*plan.values(), *expressions(plan.scalars)) for r in refs(e))
    own = {a.target for a in assigns(plan.scalars) if not a.quote}
    states = {s.symbol for s in plan.algorithm.states}
    last = {a.target.name: a.target for a in assigns(plan.scalars)}

    def lasts(value: Expr) -> bool:
        return all(last.get(ref.name, ref) == ref for ref in refs(value))

    return {
        ref: value
        for ref, value in definitions(plan).items()
        if ref in own and ref.name not in states and lasts(value)
        if _is_worth_it(value, uses[ref])
    }


def _is_worth_it(value: Expr, uses: int) -> bool:
    """Torch divides as fast as it multiplies, so one over a name never needs a name of its own."""
    return _is_inverse(value) or (uses == 1 and _is_short(value))


def _is_inverse(expr: Expr) -> bool:
    match expr:
        case Call("/", (one, Ref())):
            return is_number(one, 1)
    return False


def _is_short(expr: Expr) -> bool:
    """A sum or product of one or two operators; a quotient, or a kept old value, has its name."""
    nodes = list(walk(expr))
    plain = all(isinstance(e, Const | Ref) or _is_operator(e) for e in nodes)
    return plain and 0 < sum(isinstance(e, Call) for e in nodes) <= _LONGEST


def _is_operator(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.op in ("+", "-", "*", "neg")
