"""Algorithm -> Plan: the scalar program, and a sweep for each time a reduction ends one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Literal, TypeAlias

from optgen.ir.algorithm import Algorithm
from optgen.ir.errors import RuleError
from optgen.ir.nodes import Call, Program, Ref, assigns, expressions, refs, walk
from optgen.ir.ops import MATRIX_OPS
from optgen.ir.plan import (
    Finish,
    MatrixCall,
    Phase,
    Plan,
    Sweep,
    asked_fresh,
    is_reduction,
    streams_of,
    streams_of_sweep,
)
from optgen.ir.value_kinds import Kind
from optgen.ir.verify import StaleReadError, verify_plan
from optgen.passes.assume import Facts, assume, cases
from optgen.passes.crossing import cut_apart
from optgen.passes.drop_idle import drop_idle
from optgen.passes.drop_unread import drop_unread
from optgen.passes.expand_reductions import expand_reductions
from optgen.passes.finish_small import finish_small
from optgen.passes.fold_constants import fold_constants
from optgen.passes.keep_scalars import keep_scalars
from optgen.passes.levels import TangledError, kinds_of
from optgen.passes.maximize import add_maximize
from optgen.passes.name_items import name_items
from optgen.passes.name_properties import name_properties
from optgen.passes.name_reductions import name_reductions
from optgen.passes.part_names import part_names
from optgen.passes.phases import Cut, uncut
from optgen.passes.rename import rename
from optgen.passes.rewrite import filter_assigns
from optgen.passes.split import Splitter, is_self_copy
from optgen.passes.ssa import to_ssa

Order: TypeAlias = Literal["late", "early", "whole"]
"""When sweeps store a state: the last one that needs its old value does, and whoever needs the new
one computes it anew ("late"), or the first that knows the new one does, and whoever needs it reads
it back ("early"). A "whole" plan is not cut: one sweep, a statement at a time over whole tensors.
"""


def plans(algorithm: Algorithm, order: Order = "late") -> tuple[Plan, ...]:
    """A plan for each kind of parameter the rule tells apart; one where it asks nothing."""
    return tuple(plan(algorithm, facts, order) for facts in cases(algorithm))


def plan(algorithm: Algorithm, facts: Facts | None = None, order: Order = "late") -> Plan:
    """The plan of an algorithm for parameters of which these facts hold.

    Copies that only carry a name into the version of a join are left out: printers write all
    versions of a name as one variable.

    Raises:
        RuleError: a matrix word stands where no plan can cut the rule.
    """
    assumed = assume(add_maximize(name_items(drop_unread(algorithm))), facts or {})
    named = rename(expand_reductions(name_properties(fold_constants(assumed))))
    try:
        made = _planned(named, order, apart=False)
    except (TangledError, StaleReadError):
        try:
            made = _planned(named, order, apart=True)
        except TangledError as error:
            if refusal := _refusal(named.rule):
                raise refusal from error
            raise
    return replace(made, facts=dict(facts or {}), fresh_keys=asked_fresh(algorithm))


def _refusal(program: Program) -> RuleError | None:
    """Return an error at the first matrix word, or None if the rule has none."""
    for stmt in assigns(program):
        for call in walk(stmt.value):
            if isinstance(call, Call) and call.op in MATRIX_OPS:
                return RuleError(
                    call.place,
                    f"`{call.op}` and what is read after it wait for each other",
                    f"numbers, rows and columns do not outlast `{call.op}`: give a state of rows "
                    "or columns its new value after it",
                )
    return None


def _planned(named: Algorithm, order: Order, apart: bool) -> Plan:
    """The plan of a rule without versions.

    With `apart` every value but the last of a name has a name of its own, and none is shared by the
    arms of a branch: some rules need it, and the others get by with fewer tensors.

    Raises:
        TangledError: values of both arms of a branch wait for one another.
        StaleReadError: trips disagree about what a name stands for.
    """
    versioned, kinds, pieces, early = _cut(named, order, apart)
    scalars, trips = _split(versioned, pieces, kinds, early)
    between = (*pieces.finishes, *pieces.calls)
    scalars, programs = keep_scalars(scalars, (*trips, *between), kinds)
    programs = _without_unused(programs, versioned)
    programs = programs if pieces.is_whole else _trimmed(programs, pieces, versioned)
    scalars = used_scalars(scalars, programs, versioned)
    scalars, *phased = (
        filter_assigns(p, lambda a: not is_self_copy(a)) for p in (scalars, *programs)
    )
    phases = _phases(versioned, pieces, phased)
    made = Plan(versioned, scalars, phases, kinds)
    made = made if order == "whole" else finish_small(made)
    if made.is_cut:
        verify_plan(made, hoisted=False)  # where trips disagree about a state, nothing is printed
    return made


def _cut(
    algorithm: Algorithm, order: Order, apart: bool
) -> tuple[Algorithm, dict[Ref, Kind], Cut, bool]:
    """The rule with versions, their kinds, its phases, and whether they store early."""
    versioned = part_names(drop_idle(name_reductions(to_ssa(algorithm, apart))), tensors=apart)
    kinds = kinds_of(versioned)
    if order == "whole":
        return versioned, kinds, uncut(versioned), False
    return versioned, kinds, *cut_apart(versioned, kinds, order == "early")


def _split(
    algorithm: Algorithm, pieces: Cut, kinds: dict[Ref, Kind], early: bool
) -> tuple[Program, tuple[Program, ...]]:
    """The scalar program, and the tensor statements of every trip in linear form."""
    if pieces.is_whole:
        scalars, body = Splitter(algorithm, kinds).split(algorithm.rule)
        return scalars, (body,)
    numbers = filter_assigns(algorithm.rule, lambda a: kinds[a.target].is_scalar)
    splitter = Splitter(replace(algorithm, rule=numbers), kinds)
    scalars, _ = splitter.split(numbers)
    trips: list[Program] = []
    called = (a.value for call in pieces.calls for a in assigns(call))
    held = frozenset(ref for word in called for ref in refs(word))  # a matrix word takes names
    for trip in pieces.trips:
        one = replace(algorithm, rule=trip)
        trips.append(Splitter(one, kinds, dict(splitter.ranges), held=held).split(trip)[1])
        if early:
            held |= {a.target for a in assigns(trips[-1])}
    return scalars, tuple(trips)


def _phases(algorithm: Algorithm, pieces: Cut, programs: list[Program]) -> tuple[Phase, ...]:
    """Before each trip what is called and finished, then the trip; nothing that is empty.

    Of what is finished at the level of a matrix word nothing was made before it: see `crossing`.
    """
    count = len(pieces.trips)
    trips, finishes, calls = programs[:count], programs[count : 2 * count], programs[2 * count :]
    called: dict[str, None] = {}
    phases: list[Phase] = []
    for trip in range(count):
        for stmt in assigns(calls[trip]):
            assert isinstance(stmt.value, Call)
            phases.append(MatrixCall(stmt.target, stmt.value.op, stmt.value.args, stmt.quote))
            called[stmt.target.name] = None
        if finishes[trip]:
            phases.append(Finish(finishes[trip]))
        if trips[trip]:
            waiting = (e for program in calls[trip + 1 : trip + 2] for e in expressions(program))
            taken = {ref.name for expr in waiting for ref in refs(expr)}  # by words that are left
            stored = pieces.stored[trip]
            handed = tuple(name for name in pieces.handed[trip] if name in taken)
            streams = streams_of_sweep(algorithm, trips[trip], stored, handed, tuple(called))
            phases.append(Sweep(streams, trips[trip]))
    match phases:
        case [Sweep(_, body)]:  # one trip is given every tensor, whether it reads it or not
            return (Sweep(streams_of(algorithm, body), body),)
    return tuple(phases)


def _trimmed(
    programs: tuple[Program, ...], pieces: Cut, algorithm: Algorithm
) -> tuple[Program, ...]:
    """The phases; a trip computes nothing but what it reads, reduces, stores and hands over."""
    count = len(pieces.trips)
    calls = programs[2 * count :]
    taken = {ref.name for p in calls for expr in expressions(p) for ref in refs(expr)}
    trips = (_trip(p, {*s, *taken}) for p, s in zip(programs, pieces.stored, strict=False))
    return _without_unused((*trips, *programs[count:]), algorithm)


def _trip(trip: Program, kept: Collection[str]) -> Program:
    read = {ref for expr in expressions(trip) for ref in refs(expr)}
    fewer = filter_assigns(
        trip, lambda a: a.target.name in kept or a.target in read or is_reduction(a.value)
    )
    return fewer if fewer == trip else _trip(fewer, kept)


def _without_unused(programs: tuple[Program, ...], algorithm: Algorithm) -> tuple[Program, ...]:
    """The phases without locals nobody reads."""
    kept = {algorithm.param, *(s.symbol for s in algorithm.states)}
    read = {r for p in programs for e in expressions(p) for r in refs(e)}
    fewer = tuple(
        filter_assigns(p, lambda a: a.target.name in kept or a.target in read) for p in programs
    )
    return fewer if fewer == programs else _without_unused(fewer, algorithm)


def used_scalars(scalars: Program, programs: Iterable[Program], algorithm: Algorithm) -> Program:
    """The scalar program without names that neither it nor a phase reads, down to the last."""
    kept = {s.symbol for s in algorithm.scalar_states()}
    read = {r for p in (scalars, *programs) for e in expressions(p) for r in refs(e)}
    fewer = filter_assigns(scalars, lambda a: a.target.name in kept or a.target in read)
    return scalars if fewer == scalars else used_scalars(fewer, programs, algorithm)
