"""What an earlier trip left in memory is computed anew only where the tensor went by in blocks.

A trip over a whole tensor leaves its locals behind, and the next may read them; of a tensor that is
gone over block by block, a trip leaves those of its last block only.
"""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.nodes import If, Program, Ref, assigns, expressions, refs
from optgen.ir.plan import Phase, Plan, Sweep, is_reduction
from optgen.ir.value_kinds import STATIC
from optgen.passes.rewrite import filter_assigns

BLOCKED = Ref("blocked")


def keep_locals(plan: Plan) -> Plan:
    """The same plan with what may be left from an earlier sweep under a question, `blocked`."""
    kept = {plan.algorithm.param, plan.algorithm.grad, *(s.symbol for s in plan.algorithm.states)}
    left: dict[str, Ref] = {}  # a variable holds the last version of its name
    phases: list[Phase] = []
    for phase in plan.phases:
        if isinstance(phase, Sweep):
            phase = replace(phase, body=_questioned(phase, set(left.values())))
            made = {a.target.name: a.target for a in assigns(phase.body)}
            left |= {name: ref for name, ref in made.items() if name not in kept}
            if not phase.body:
                continue
        phases.append(phase)
    return replace(plan, phases=tuple(phases), kinds={**plan.kinds, BLOCKED: STATIC})


def _questioned(sweep: Sweep, left: set[Ref]) -> Program:
    """What the sweep needs only to make what is left, first and in question; then the rest."""
    needed, needed_alone = _needed(sweep, left), _needed(sweep, set())
    anew = filter_assigns(sweep.body, lambda a: a.target in needed_alone - needed)
    rest = filter_assigns(sweep.body, lambda a: a.target in needed)
    made_by_rest = {a.target for a in assigns(rest)}
    reads_rest = any(ref in made_by_rest for expr in expressions(anew) for ref in refs(expr))
    if not anew:
        return rest
    if reads_rest:
        return filter_assigns(sweep.body, lambda a: a.target in needed_alone)
    return (If(BLOCKED, anew), *rest)


def _needed(sweep: Sweep, left: set[Ref]) -> set[Ref]:
    """What a sweep must compute even where `left` is still there.

    A branch that leaves a name alone reads its old version without saying so: of a name that is
    needed, every version is.
    """
    stored = {s.name for s in sweep.streams if s.stored}
    roots = [a for a in assigns(sweep.body) if a.target.name in stored or is_reduction(a.value)]
    needed = {a.target for a in roots}
    while True:
        read = {r for a in assigns(sweep.body) if a.target in needed for r in refs(a.value)}
        names = {ref.name for ref in needed | (read - left)}
        more = {a.target for a in assigns(sweep.body) if a.target.name in names} - needed
        if not more:
            return needed
        needed |= more


def is_questioned(plan: Plan) -> bool:
    """Whether a sweep of the plan asks."""
    return any(
        isinstance(stmt, If) and stmt.condition == BLOCKED
        for sweep in plan.sweeps
        for stmt in sweep.body
    )
