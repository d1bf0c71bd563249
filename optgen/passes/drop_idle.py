"""Drops assignments that give a state, or p, the value it already has: no sweep stores them."""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import assigns, rename_program
from optgen.passes.levels import kinds_of
from optgen.passes.rewrite import filter_assigns
from optgen.passes.split import Splitter, is_self_copy


def drop_idle(algorithm: Algorithm) -> Algorithm:
    """Return a rule with versions, without assignments to p and to states that change nothing."""
    programs = Splitter(algorithm, kinds_of(algorithm)).split(algorithm.rule)
    changed = {a.target.name for p in programs for a in assigns(p) if not is_self_copy(a)}
    written = {a.target.name for a in assigns(algorithm.rule)}
    kept = {algorithm.param, *(s.symbol for s in algorithm.states)}
    idle = kept & written - changed
    if not idle:
        return algorithm
    rule = filter_assigns(algorithm.rule, lambda a: a.target.name not in idle)
    return replace(
        algorithm,
        rule=rename_program(rule, lambda r: replace(r, version=0) if r.name in idle else r),
    )
