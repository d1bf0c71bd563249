"""Which values are still to be read after each statement."""

from __future__ import annotations

from optgen.ir.nodes import Assign, Program, Ref, refs


def live_after(program: Program, live: frozenset[Ref] = frozenset()) -> dict[int, frozenset[Ref]]:
    """For every assignment, by its id: the values that something after it reads."""
    found: dict[int, frozenset[Ref]] = {}
    _backwards(program, live, found)
    return found


def _backwards(
    program: Program, live: frozenset[Ref], found: dict[int, frozenset[Ref]]
) -> frozenset[Ref]:
    for stmt in reversed(program):
        if isinstance(stmt, Assign):
            found[id(stmt)] = live
            live = (live - {stmt.target}) | frozenset(refs(stmt.value))
        else:
            then = _backwards(stmt.then, live, found)
            orelse = _backwards(stmt.orelse, live, found)
            live = then | orelse | frozenset(refs(stmt.condition))
    return live
