"""Rematerialize an earlier sweep's locals only if the tensor is swept in blocks.

After a sweep over a whole tensor its locals are still in memory, and the next sweep reads them.
After a sweep in blocks, only the last block's locals are left, so the next sweep recomputes them.
A local that is an alias of a stream is always recomputed: the next sweep may overwrite the stream,
and must then copy it first. A rule with matrix ops is never swept in blocks.
"""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.kinds import STATIC
from optgen.ir.nodes import (
    If,
    Program,
    Ref,
    assigns,
    copy_source,
    filter_assigns,
    refs,
    refs_read,
)
from optgen.ir.plan import Phase, Plan, Sweep, is_reduction

BLOCKED = Ref("blocked")
"""Condition that is true if the tensor is swept in blocks."""


def rematerialize_if_blocked(plan: Plan) -> Plan:
    """Return the plan with recomputed locals inside a branch on `blocked`, or without them."""
    declared = plan.algorithm.stored | {plan.algorithm.grad}
    available: dict[str, Ref] = {}  # name -> version that its variable holds
    phases: list[Phase] = []
    for phase in plan.phases:
        if isinstance(phase, Sweep):
            known, in_blocks = set(available.values()), not plan.matrix_calls
            phase = replace(phase, body=_without_known_locals(phase, known, in_blocks))
            assigned = {a.target.name: a.target for a in assigns(phase.body)}
            # An alias is another tensor itself, neither scaled nor copied.
            aliases = {a.target.name for a in assigns(phase.body) if copy_source(a) is not None}
            variables = (available | assigned).items()
            available = {name: ref for name, ref in variables if name not in declared | aliases}
            if not phase.body:
                continue
        phases.append(phase)
    return replace(plan, phases=tuple(phases), kinds={**plan.kinds, BLOCKED: STATIC})


def _without_known_locals(sweep: Sweep, available: set[Ref], in_blocks: bool) -> Program:
    """Return what is left of a sweep's body if some locals are `available`.

    If sweeps may run in blocks, a branch that recomputes the locals comes first.
    """
    needed, needed_if_blocked = _needed_names(sweep, available), _needed_names(sweep, set())
    recomputed = filter_assigns(sweep.body, lambda a: a.target in needed_if_blocked - needed)
    rest = filter_assigns(sweep.body, lambda a: a.target in needed)
    targets_of_rest = {a.target for a in assigns(rest)}
    reads_rest = not refs_read(recomputed).isdisjoint(targets_of_rest)
    if not (recomputed and in_blocks):
        return rest
    if reads_rest:  # the branch cannot come first, so all locals are recomputed without a branch
        return filter_assigns(sweep.body, lambda a: a.target in needed_if_blocked)
    return (If(BLOCKED, recomputed), *rest)


def _needed_names(sweep: Sweep, available: set[Ref]) -> set[Ref]:
    """Return the names that a sweep must compute even if some locals are `available`.

    An arm that does not assign a name implicitly reads the name's old version. So if one version
    of a name is needed, all are.
    """
    stored = {s.name for s in sweep.streams if s.stored}
    effects = [a for a in assigns(sweep.body) if a.target.name in stored or is_reduction(a.value)]
    needed = {a.target for a in effects}
    while True:
        read = {r for a in assigns(sweep.body) if a.target in needed for r in refs(a.value)}
        needed_names = {ref.name for ref in needed | (read - available)}
        newly_needed = {
            a.target for a in assigns(sweep.body) if a.target.name in needed_names
        } - needed
        if not newly_needed:
            return needed
        needed |= newly_needed


def reads_blocked(plan: Plan) -> bool:
    """Tell whether a sweep of the plan branches on `blocked`."""
    return any(
        isinstance(stmt, If) and stmt.condition == BLOCKED
        for sweep in plan.sweeps
        for stmt in sweep.body
    )
