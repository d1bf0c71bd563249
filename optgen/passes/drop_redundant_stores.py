"""Drop assignments that give a state or the parameter the value it already has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
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
    expressions,
    filter_assigns,
    refs,
    rename_program,
)
from optgen.passes.dependency_depth import kinds_of
from optgen.passes.split_scalars import Splitter


def drop_redundant_stores(algorithm: Algorithm) -> Algorithm:
    """Return an SSA rule without assignments to parameter or states that never change."""
    stored = {algorithm.param, *(s.symbol for s in algorithm.states)}
    written = {a.target.name for a in assigns(algorithm.rule)}
    unchanged = stored & written - _changed_names(algorithm, stored)
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
    rule = _without_dead_values(algorithm.rule, last_versions.values())
    programs = Splitter(replace(algorithm, rule=rule), kinds_of(algorithm)).split(rule)
    needed = {*_refs_read(rule, *programs), *last_versions.values()}
    copies = _copies(algorithm.rule, stored)
    return {
        a.target.name
        for program in programs
        for a in assigns(program)
        if a.target in needed and _origin(a, copies) != a.target.name
    }


def _without_dead_values(program: Program, last_versions: Collection[Ref]) -> Program:
    """Return a program without values that neither it nor the next step reads."""
    while True:
        needed = {*_refs_read(program), *last_versions}
        shorter = filter_assigns(program, partial(_is_needed, needed))
        if shorter == program:
            return program
        program = shorter


def _is_needed(needed: Collection[Ref], stmt: Assign) -> bool:
    return stmt.target in needed or is_wide(stmt.value)


def _refs_read(*programs: Program) -> set[Ref]:
    """Return the names that the expressions of programs read."""
    return {ref for program in programs for expr in expressions(program) for ref in refs(expr)}


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
