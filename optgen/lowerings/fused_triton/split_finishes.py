"""Split a `Finish` at sums over all matrices of a tensor, and at reductions over parameters.

Each program finishes some of the matrices and leaves a partial sum. The next kernel combines them.
A reduction over parameters takes numbers that a kernel has stored, and the next kernel reads the
result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import reduce

from optgen.ir.binding_times import Axes
from optgen.ir.generated_names import free_name
from optgen.ir.nodes import Assign, Call, Expr, If, Program, Ref, assigns
from optgen.ir.plan import Finish, Phase, Plan, Sweep, WideCall, is_reduction, reads
from optgen.ir.whole_matrices import is_wide
from optgen.passes.hoist_between_sweeps import Arms, inside_arms
from optgen.passes.rewrite import filter_assigns


def split_finishes(plan: Plan) -> Plan:
    """Return a plan in which no finish reads a sum over all matrices that it makes itself.

    Each phase that leaves partial sums is followed by a finish, possibly empty, that combines them.
    A reduction over parameters is a phase of its own.
    """
    phases: list[Phase] = []
    for phase in _split_phases(plan):
        if phases and _leaves_parts(plan, phases[-1]) and not isinstance(phase, Finish):
            phases.append(Finish(()))
        phases.append(phase)
    wide = [phase for phase in phases if isinstance(phase, WideCall)]
    kinds = {ref: plan.kinds[call.target] for call in wide for ref in reads(call.args[0])}
    return replace(plan, phases=tuple(phases), kinds={**kinds, **plan.kinds})


def _split_phases(plan: Plan) -> Iterator[Phase]:
    for phase in plan.phases:
        if isinstance(phase, Finish):
            taken = {ref.name for ref in plan.kinds}
            for part in _split(plan, phase):
                yield from _split_at_wide(part, taken)
        else:
            yield phase


def _split_at_wide(finish: Finish, taken: set[str]) -> Iterator[Phase]:
    """Split a finish at its reductions over parameters, which keep their order."""
    wide = [a for a in assigns(finish.body) if is_wide(a.value)]
    if not wide:
        yield finish
        return
    first, *others = wide
    arms = _arms_around(finish.body, first)
    late = dependents(finish.body, {stmt.target for stmt in wide}) | {s.target for s in others}
    early = filter_assigns(finish.body, lambda a: a.target not in {*late, first.target})
    assert isinstance(first.value, Call)
    (operand,) = first.value.args
    if not isinstance(operand, Ref):
        name = Ref(free_name(f"{first.target.name}_of_one", taken))
        taken.add(name.name)
        own = replace(first, target=name, value=operand)
        early, operand = (*early, inside_arms(arms, own)), name
    if early:
        yield Finish(early)
    condition = _all_hold(arms)
    yield WideCall(first.target, first.value.op, (operand,), first.quote, condition)
    if rest := filter_assigns(finish.body, lambda a: a.target in late):
        yield from _split_at_wide(Finish(rest), taken)


def _arms_around(program: Program, wanted: Assign) -> Arms:
    """Return the branches that lead to a statement of a program."""
    for stmt in program:
        if isinstance(stmt, Assign):
            continue
        for arm, taken in ((stmt.then, True), (stmt.orelse, False)):
            if any(each is wanted for each in assigns(arm)):
                return ((stmt.condition, taken), *_arms_around(arm, wanted))
    return ()


def _all_hold(arms: Arms) -> Expr | None:
    """Return the condition under which these arms are taken; None if there are none."""
    conditions = [expr if taken else Call("not", (expr,)) for expr, taken in arms]
    return reduce(lambda a, b: Call("and", (a, b)), conditions) if conditions else None


def _leaves_parts(plan: Plan, phase: Phase) -> bool:
    match phase:
        case Sweep():
            return bool(phase.reductions)
        case Finish():
            return bool(partial_sums(plan, phase))
    return False


def partial_sums(plan: Plan, finish: Finish) -> list[Assign]:
    """Return the sums over all matrices that a finish makes for the next one."""
    made = (a for a in assigns(finish.body) if is_reduction(a.value))
    return [a for a in made if plan.kinds[a.target].axes is Axes.NONE]


def _split(plan: Plan, finish: Finish) -> Iterator[Finish]:
    """Split a finish so that no part reads a sum over all matrices that it makes itself."""
    late = dependents(finish.body, {a.target for a in partial_sums(plan, finish)})
    yield Finish(filter_assigns(finish.body, lambda a: a.target not in late))
    rest = filter_assigns(finish.body, lambda a: a.target in late)
    if rest:
        yield from _split(plan, Finish(rest))


def dependents(body: Program, sums: Collection[Ref]) -> set[Ref]:
    """Return the values that depend on these sums.

    An assignment to a state is included if one of these values needs the state's old value.
    """
    late: set[Ref] = set()
    needed: set[Ref] = set()
    before = -1
    while len(late) > before:
        before = len(late)
        for stmt, conditions in with_conditions(body):
            read = {ref for expr in (stmt.value, *conditions) for ref in reads(expr)}
            overwrites = stmt.target.version and Ref(stmt.target.name) in needed
            if stmt.target in late or overwrites or read & {*late, *sums}:
                late.add(stmt.target)
                needed |= read
    return late


def with_conditions(
    program: Program, conditions: tuple[Expr, ...] = ()
) -> Iterator[tuple[Assign, tuple[Expr, ...]]]:
    """Yield every assignment with the conditions of its enclosing branches."""
    for stmt in program:
        if isinstance(stmt, If):
            inside = (*conditions, stmt.condition)
            yield from with_conditions(stmt.then, inside)
            yield from with_conditions(stmt.orelse, inside)
        else:
            yield stmt, conditions
