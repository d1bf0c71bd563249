"""Split live ranges: rename versions that would overwrite a value that is still to be read.

A printer writes all versions of a name as one variable. But small values (numbers, rows and
columns) are computed as soon as they are known, before or between sweeps, out of the rule's order.
So every version but the first of such a name gets a new name. A state of a `Finish` is stored only
where it gets its last value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from optgen.ir.algorithm import Algorithm
from optgen.ir.generated_names import is_free, numbered
from optgen.ir.kinds import Axes, Kind, declared_kinds, kind_of
from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    Program,
    Ref,
    assigns,
    children,
    expressions,
    map_expressions,
    rebuild,
    refs,
    rename_program,
    replace_reads,
)
from optgen.passes.dependency_depth import kinds_of
from optgen.passes.name_values import is_matrix_op
from optgen.passes.ssa import under_condition


def split_live_ranges(algorithm: Algorithm, split_tensors: bool = False) -> Algorithm:
    """Return an SSA rule with split live ranges.

    A name that a matrix op assigns is split too, because a later sweep may need every version; its
    last version keeps the name. With `split_tensors`, the parameter, all tensor states and the
    operands of matrix ops are split in the same way.
    """
    algorithm = _with_copies_of_old_states(algorithm)
    to_split = {state.symbol for state in algorithm.finish_states()} | _reduced_scalars(algorithm)
    matrix_ops = [a for a in assigns(algorithm.rule) if is_matrix_op(a.value)]
    to_split |= {a.target.name for a in matrix_ops}
    if split_tensors:
        to_split |= {algorithm.param, *(state.symbol for state in algorithm.tensor_states())}
        to_split |= {ref.name for a in matrix_ops for ref in refs(a.value)}
    versions_to_rename = [*_later_small_values(algorithm), *_all_but_last(algorithm, to_split)]
    names = _new_names(algorithm, [ref.name for ref in versions_to_rename])
    renamed = {
        ref: replace(ref, name=name) for ref, name in zip(versions_to_rename, names, strict=True)
    }
    rule = rename_program(algorithm.rule, lambda ref: renamed.get(ref, ref))
    return replace(algorithm, rule=rule)


def _with_copies_of_old_states(algorithm: Algorithm) -> Algorithm:
    """Copy each state of a `Finish` if tensor values are computed from its old value.

    A later sweep may recompute these values after the state has got its new value.
    """
    kinds = kinds_of(algorithm)
    states = [Ref(state.symbol) for state in algorithm.finish_states()]
    read = {
        ref for expr in _tensor_values(algorithm.rule, kinds) for ref in refs(expr) if ref in states
    }
    read_states = [ref for ref in states if ref in read]
    names = _new_names(algorithm, [ref.name for ref in read_states], "_before")
    copies = {ref: Ref(name, version=1) for ref, name in zip(read_states, names, strict=True)}

    def reading_copies(expr: Expr) -> Expr:
        has_all_axes = kind_of(expr, kinds.__getitem__).axes is Axes.TENSOR
        return replace_reads(expr, copies) if has_all_axes else rebuild(expr, reading_copies)

    copy_statements = (
        under_condition(algorithm.existence_condition(old.name), Assign(new, Call("copy", (old,))))
        for old, new in copies.items()
    )
    return replace(
        algorithm, rule=(*copy_statements, *map_expressions(algorithm.rule, reading_copies))
    )


def _reduced_scalars(algorithm: Algorithm) -> set[str]:
    """Return the states of the scalar program that get a value from a reduction."""
    kinds, states = kinds_of(algorithm), {state.symbol for state in algorithm.scalar_states()}
    return {ref.name for ref, kind in kinds.items() if ref.name in states and not kind.is_scalar}


def _tensor_values(program: Program, kinds: Mapping[Ref, Kind]) -> Iterator[Expr]:
    """Yield the outermost expressions that have one value per element."""

    def outermost_in(expr: Expr) -> Iterator[Expr]:
        if kind_of(expr, kinds.__getitem__).axes is Axes.TENSOR:
            yield expr
        else:
            for child in children(expr):
                yield from outermost_in(child)

    for expr in expressions(program):
        yield from outermost_in(expr)


def _later_small_values(algorithm: Algorithm) -> list[Ref]:
    """Return every version but the first of each local that holds a small value."""
    declared, kinds = declared_kinds(algorithm), kinds_of(algorithm)
    written = dict.fromkeys(a.target for a in assigns(algorithm.rule))
    first_versions = {ref.name: ref for ref in reversed(written)}
    return [
        ref
        for ref in written
        if ref.name not in declared
        and kinds[ref].axes is not Axes.TENSOR
        and ref != first_versions[ref.name]
    ]


def _all_but_last(algorithm: Algorithm, names: Collection[str]) -> list[Ref]:
    """Return all versions of these names but the last."""
    last_versions = {name: _last_version(algorithm.rule, name) for name in names}
    written = dict.fromkeys(a.target for a in assigns(algorithm.rule) if a.target.name in names)
    return [ref for ref in written if ref.version != last_versions[ref.name]]


def _last_version(program: Program, name: str) -> int:
    """Return a name's version after a program.

    Both arms of a branch end in the same version, except for a state that does not exist
    in one of them.
    """
    version = 0
    for stmt in program:
        if not isinstance(stmt, Assign):
            version = max(version, *(_last_version(arm, name) for arm in (stmt.then, stmt.orelse)))
        elif stmt.target.name == name:
            version = stmt.target.version
    return version


def _new_names(algorithm: Algorithm, names: Iterable[str], suffix: str = "") -> list[str]:
    """Return, for each name, a free name that consists of it and a suffix or a number."""
    used_names = {a.target.name for a in assigns(algorithm.rule)} | set(declared_kinds(algorithm))
    new_names: list[str] = []
    for name in names:
        candidates = chain([f"{name}{suffix}"] if suffix else [], numbered(f"{name}{suffix}"))
        new_names.append(next(n for n in candidates if is_free(n, used_names)))
        used_names.add(new_names[-1])
    return new_names
