"""A `Finish` is cut where it sums over all matrices: programs that finish some of them each leave a
part of such a sum, and the next kernel adds the parts up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from optgen.ir.nodes import Assign, Expr, If, Program, Ref, assigns
from optgen.ir.plan import Finish, Phase, Plan, Sweep, is_reduction, reads
from optgen.ir.value_kinds import Axes
from optgen.passes.rewrite import filter_assigns


def split_finishes(plan: Plan) -> Plan:
    """Return the same plan; no finish reads a sum over all matrices that it makes itself.

    A finish, be it empty, follows each phase that leaves sums in parts: it adds them up.
    """
    phases: list[Phase] = []
    for phase in plan.phases:
        if phases and _leaves_parts(plan, phases[-1]) and not isinstance(phase, Finish):
            phases.append(Finish(()))
        phases += _split(plan, phase) if isinstance(phase, Finish) else [phase]
    return replace(plan, phases=tuple(phases))


def _leaves_parts(plan: Plan, phase: Phase) -> bool:
    match phase:
        case Sweep():
            return bool(phase.reductions)
        case Finish():
            return bool(sums_left(plan, phase))
    return False


def sums_left(plan: Plan, finish: Finish) -> list[Assign]:
    """The sums over all matrices that a finish makes for the next one."""
    made = (a for a in assigns(finish.body) if is_reduction(a.value))
    return [a for a in made if plan.kinds[a.target].axes is Axes.NONE]


def _split(plan: Plan, finish: Finish) -> Iterator[Phase]:
    late = waiting(finish.body, {a.target for a in sums_left(plan, finish)})
    yield Finish(filter_assigns(finish.body, lambda a: a.target not in late))
    rest = filter_assigns(finish.body, lambda a: a.target in late)
    if rest:
        yield from _split(plan, Finish(rest))


def waiting(body: Program, sums: Collection[Ref]) -> set[Ref]:
    """Return what is made of these sums, and the states whose old value that reads."""
    late: set[Ref] = set()
    kept: set[Ref] = set()
    before = -1
    while len(late) > before:
        before = len(late)
        for stmt, conditions in guarded(body):
            read = {ref for expr in (stmt.value, *conditions) for ref in reads(expr)}
            replaced = stmt.target.version and Ref(stmt.target.name) in kept
            if stmt.target in late or replaced or read & {*late, *sums}:
                late.add(stmt.target)
                kept |= read
    return late


def guarded(
    program: Program, conditions: tuple[Expr, ...] = ()
) -> Iterator[tuple[Assign, tuple[Expr, ...]]]:
    """Every assignment with the conditions it stands under."""
    for stmt in program:
        if isinstance(stmt, If):
            inside = (*conditions, stmt.condition)
            yield from guarded(stmt.then, inside)
            yield from guarded(stmt.orelse, inside)
        else:
            yield stmt, conditions


def entering(program: Program, given: frozenset[str] = frozenset()) -> set[str]:
    """The names that a block reads before every path has given them a value."""
    names: set[str] = set()
    for stmt in program:
        if isinstance(stmt, If):
            names |= {r.name for r in reads(stmt.condition)} - given
            names |= entering(stmt.then, given) | entering(stmt.orelse, given)
        else:
            names |= {r.name for r in reads(stmt.value)} - given
        given |= defined((stmt,))
    return names


def defined(program: Program) -> set[str]:
    """The names that a block assigns on every path."""
    names: set[str] = set()
    for stmt in program:
        if isinstance(stmt, If):
            names |= defined(stmt.then) & defined(stmt.orelse)
        else:
            names.add(stmt.target.name)
    return names
