"""Drop what changes nothing: redundant stores, values that nothing reads, and copies to oneself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from optgen.ir.algorithm import Algorithm
from optgen.ir.execution import is_wide
from optgen.ir.nodes import (
    Assign,
    Program,
    Ref,
    assigns,
    copy_source,
    filter_assigns,
    is_self_copy,
    names_assigned,
    refs_read,
    rename_program,
)
from optgen.ir.plan import is_reduction
from optgen.passes.cut_phases import CutRule
from optgen.passes.dependency_depth import kinds_of
from optgen.passes.split_scalars import Splitter


def drop_redundant_stores(algorithm: Algorithm) -> Algorithm:
    """Return an SSA rule without assignments to parameter or states that never change.

    They would give a state or the parameter the value it already has.
    """
    stored = algorithm.stored
    unchanged = stored & names_assigned(algorithm.rule) - _changed_names(algorithm, stored)
    if not unchanged:
        return algorithm
    rule = filter_assigns(algorithm.rule, lambda a: a.target.name not in unchanged)
    return replace(
        algorithm,
        rule=rename_program(rule, lambda r: replace(r, version=0) if r.name in unchanged else r),
    )


def _changed_names(algorithm: Algorithm, stored: Collection[str]) -> set[str]:
    """Return the stored names that get a new value that is read later, or is their last value."""
    last_versions = {
        a.target.name: a.target for a in assigns(algorithm.rule) if a.target.name in stored
    }
    last = set(last_versions.values())
    (rule,) = _filtered(
        (algorithm.rule,), lambda read, a: a.target in read or a.target in last or is_wide(a.value)
    )
    programs = Splitter(replace(algorithm, rule=rule), kinds_of(algorithm)).split(rule)
    needed = refs_read(rule, *programs) | last
    copies = _copies(algorithm.rule, stored)
    return {
        a.target.name
        for program in programs
        for a in assigns(program)
        if a.target in needed and _origin(a, copies) != a.target.name
    }


def _copies(program: Program, stored: Collection[str]) -> dict[Ref, Ref]:
    """Map each local variable whose only assignment copies another name to that name."""
    assignment_counts = Counter(a.target for a in assigns(program))
    sources = (
        (a.target, copy_source(a)) for a in assigns(program) if assignment_counts[a.target] == 1
    )
    return {target: source for target, source in sources if source and target.name not in stored}


def _origin(stmt: Assign, copies: Mapping[Ref, Ref]) -> str:
    """Return the name whose value a statement copies, or "" if the statement is no copy."""
    source = copy_source(stmt)
    while source and source in copies:
        source = copies[source]
    return source.name if source else ""


def drop_unread_values(cut: CutRule) -> CutRule:
    """Return the rule without values that nobody reads; a sweep keeps what it reduces or stores.

    A rule that is not cut keeps whatever it assigns to the parameter and states.
    """
    programs = _without_unused(cut.programs, cut.algorithm)
    if cut.is_whole:
        return cut.with_programs(programs)
    num_sweeps = len(cut.sweeps)
    names_of_operands = {ref.name for ref in refs_read(*programs[2 * num_sweeps :])}
    sweeps = (
        _needed_statements(sweep, {*stored, *names_of_operands})
        for sweep, stored in zip(programs, cut.stored, strict=False)
    )
    shorter = _without_unused((*sweeps, *programs[num_sweeps:]), cut.algorithm)
    return cut.with_programs(shorter)


def _needed_statements(sweep: Program, kept: Collection[str]) -> Program:
    """Return a sweep's statements that reduce, or assign a name that is kept or read."""
    (shorter,) = _filtered(
        (sweep,),
        lambda read, a: a.target.name in kept or a.target in read or is_reduction(a.value),
    )
    return shorter


def _without_unused(programs: tuple[Program, ...], algorithm: Algorithm) -> tuple[Program, ...]:
    """Return the programs without locals that none of them reads.

    A reduction over several parameters stays, because other parameters read its result.
    """
    stored = algorithm.stored
    return _filtered(
        programs, lambda read, a: a.target.name in stored or a.target in read or is_wide(a.value)
    )


def drop_unread_scalars(cut: CutRule) -> CutRule:
    """Return the rule with a scalar program that computes only what it or a phase reads."""
    scalars = used_scalars(cut.scalars, cut.programs, cut.algorithm)
    return replace(cut, scalars=without_self_copies(scalars))


def drop_self_copies(cut: CutRule) -> CutRule:
    """Return the rule without copies of a name to its next version."""
    return cut.with_programs(tuple(map(without_self_copies, cut.programs)))


def used_scalars(scalars: Program, programs: Iterable[Program], algorithm: Algorithm) -> Program:
    """Return the scalar program without names that neither it nor a phase reads."""
    stored = {s.symbol for s in algorithm.scalar_states()}
    phases_read = refs_read(*programs)
    (shorter,) = _filtered(
        (scalars,),
        lambda read, a: a.target.name in stored or a.target in read or a.target in phases_read,
    )
    return shorter


def _filtered(
    programs: tuple[Program, ...], is_needed: Callable[[set[Ref], Assign], bool]
) -> tuple[Program, ...]:
    """Return the programs with only the assignments that are needed.

    `is_needed` gets the names that the needed assignments read, and an assignment.
    """
    while True:
        keep = partial(is_needed, refs_read(*programs))
        shorter = tuple(filter_assigns(program, keep) for program in programs)
        if shorter == programs:
            return programs
        programs = shorter


def without_self_copies(program: Program) -> Program:
    """Return a program without copies of a name to its next version.

    They do nothing, because printers write all versions of a name as one variable.
    """
    return filter_assigns(program, lambda a: not is_self_copy(a))
