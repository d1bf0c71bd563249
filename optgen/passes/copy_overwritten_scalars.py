"""Copy scalars that are overwritten before a phase reads them.

The scalar program runs to its end before the first phase, and a phase may assign a scalar that a
later phase reads. Without a copy, the reader would get the new value instead of the old one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from optgen.ir.generated_names import numbered
from optgen.ir.kinds import Kind
from optgen.ir.nodes import (
    Assign,
    Program,
    Ref,
    Stmt,
    assigns,
    expressions,
    is_self_copy,
    map_expressions,
    replace_reads,
)
from optgen.ir.plan import reads


def copy_overwritten_scalars(
    scalars: Program, programs: tuple[Program, ...], kinds: dict[Ref, Kind]
) -> tuple[Program, tuple[Program, ...]]:
    """Return the scalar program with a copy of each overwritten scalar, and the phases' programs.

    The phases read the copies. The kinds of the copies are added to `kinds`.
    """
    copies: dict[Ref, Ref] = {}
    for ref in _overwritten_scalars(scalars, programs, kinds):
        copies[ref] = Ref(_unused_name(f"{ref.name}_before", kinds))
        kinds[copies[ref]] = kinds[ref]
    if not copies:
        return scalars, programs
    input_copies = tuple(Assign(copy, ref) for ref, copy in copies.items() if ref.version == 0)
    with_copies = tuple(_with_copies(scalars, copies))
    renamed = (map_expressions(p, lambda expr: replace_reads(expr, copies)) for p in programs)
    return (*input_copies, *with_copies), tuple(renamed)


def _overwritten_scalars(
    scalars: Program, programs: tuple[Program, ...], kinds: dict[Ref, Kind]
) -> Iterator[Ref]:
    """Yield the scalars that a phase reads and a later statement overwrites, in reading order."""
    writes = [a.target for a in assigns(scalars) if not is_self_copy(a)]
    writes += [a.target for p in programs for a in assigns(p) if not kinds[a.target].is_tensor]
    last_write = {ref: position for position, ref in enumerate(writes)}
    for ref in dict.fromkeys(r for p in programs for e in expressions(p) for r in reads(e)):
        later_writes = writes[last_write.get(ref, -1) + 1 :]
        if kinds[ref].is_scalar and any(w.name == ref.name for w in later_writes):
            yield ref


def _with_copies(scalars: Program, copies: dict[Ref, Ref]) -> Iterator[Stmt]:
    """Yield the scalar program with each copy after its original; conditions read the copies."""
    for stmt in scalars:
        if isinstance(stmt, Assign):
            yield stmt
            if stmt.target in copies:
                yield Assign(copies[stmt.target], stmt.value if is_self_copy(stmt) else stmt.target)
            continue
        yield replace(
            stmt,
            condition=replace_reads(stmt.condition, copies),
            then=tuple(_with_copies(stmt.then, copies)),
            orelse=tuple(_with_copies(stmt.orelse, copies)),
        )


def _unused_name(name: str, kinds: dict[Ref, Kind]) -> str:
    """Return the name, with a number if it is in use."""
    used = {ref.name for ref in kinds}
    return next(each for each in chain([name], numbered(name)) if each not in used)
