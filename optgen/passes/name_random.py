"""Give names to the random numbers of a rule, so that they are drawn before they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from optgen.ir.generated_names import free_name
from optgen.ir.kinds import TENSOR, Kind
from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    Program,
    Ref,
    assigns,
    map_expressions,
    names_read,
    rebuild,
)
from optgen.ir.ops import RANDOM_OPS
from optgen.ir.plan import Phase, Plan, Stream, Sweep

Draws = Mapping[str, Call]
"""The name of each tensor of random numbers, with the call that draws it."""


def name_random(plan: Plan) -> tuple[Plan, Draws]:
    """Return the plan with a name in place of every call that draws, and the calls by name."""
    names: dict[Call, str] = {}
    used_names = {ref.name for ref in plan.kinds}

    def named(expr: Expr) -> Expr:
        if not isinstance(expr, Call) or expr.op not in RANDOM_OPS:
            return rebuild(expr, named)
        if expr not in names:
            names[expr] = free_name("uniform", used_names)
            used_names.add(names[expr])
        return Ref(names[expr])

    changed = plan.map_sweeps(lambda body: map_expressions(body, named))
    kinds: dict[Ref, Kind] = {**plan.kinds, **{Ref(name): TENSOR for name in names.values()}}
    return replace(changed, kinds=kinds), {name: call for call, name in names.items()}


def draw_first(plan: Plan) -> Plan:
    """Return the plan with the draws of random numbers at the front of its only sweep."""
    named, draws = name_random(plan)
    statements = tuple(Assign(Ref(name), call) for name, call in draws.items())
    return named.map_sweeps(lambda body: (*statements, *body))


def draws_of(program: Program) -> Draws:
    """Return the calls that draw a program's random numbers, by the names of their results."""
    values = {a.target.name: a.value for a in assigns(program)}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, Call) and value.op in RANDOM_OPS
    }


def with_random_streams(plan: Plan, draws: Draws) -> Plan:
    """Return the plan with random numbers as streams of the sweeps that read them."""

    def changed(phase: Phase) -> Phase:
        if not isinstance(phase, Sweep):
            return phase
        names = (name for name in draws if name in names_read(phase.body))
        random_streams = (Stream(name, "local", stored=False) for name in names)
        return replace(phase, streams=(*phase.streams, *random_streams))

    return replace(plan, phases=tuple(map(changed, plan.phases)))
