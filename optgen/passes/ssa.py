"""Number the versions of a rule's names, and name apart those that must not share a variable.

A printer writes all versions of a name as one variable. `to_ssa` numbers them: every assignment
gets its own version of its name. Both arms of a branch end in the same version of each name that
either assigns; this replaces phi nodes. So every version is assigned exactly once on each path. The
exception is a path on which a state does not exist, or on which nothing reads a local, which has no
value there: such a path has no version of the name.

Planning computes small values (numbers, rows and columns) as soon as they are known, before or
between sweeps, out of the rule's order. Then a variable would be overwritten that is still to be
read. So `split_live_ranges` gives new names to versions of small values, before the rule is cut,
and `copy_overwritten_scalars` copies scalars that a phase overwrites, after it is cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from optgen.ir.algorithm import Algorithm
from optgen.ir.kinds import Axes, Kind, declared_kinds, kind_of, names_of_rule
from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    If,
    Program,
    Ref,
    Stmt,
    assigns,
    children,
    expressions,
    is_self_copy,
    map_expressions,
    rebuild,
    refs,
    rename_program,
    replace_reads,
)
from optgen.ir.ops import PROPERTIES
from optgen.ir.plan import reads
from optgen.ir.reserved_in_python import is_free, numbered
from optgen.passes.cut_phases import CutRule
from optgen.passes.dependency_depth import kinds_of
from optgen.passes.extract_subexpressions import is_matrix_op


def to_ssa(algorithm: Algorithm, separate_versions: bool = False) -> Algorithm:
    """Return the algorithm with its rule in SSA form; inputs are version 0.

    With `separate_versions`, an arm's last value keeps its own version, and a copy assigns it to
    the version of the join. Then no version is computed in both arms.
    """
    current_versions = dict.fromkeys(declared_kinds(algorithm), 0)
    # A copy between versions of these states may become a real statement, since `split_live_ranges`
    # renames versions. It must not read a state that does not exist.
    states = algorithm.states if separate_versions else algorithm.factor_states()
    conditions = {state.symbol: algorithm.existence_condition(state.symbol) for state in states}
    return replace(
        algorithm,
        rule=_versioned(
            algorithm.rule, current_versions, {}, _Versions(separate_versions, conditions)
        ),
    )


class _Versions(Counter[str]):
    """Number of versions of each name up to a place in the rule, and the path to this place.

    * `separate_versions`: whether an arm's last value keeps its own version.
    * `exists_if`: for each state, the condition under which it exists; None if it always does.
    * `path`: the conditions that hold at the current statement.
    """

    def __init__(self, separate_versions: bool, exists_if: Mapping[str, Expr | None]) -> None:
        super().__init__()
        self.separate_versions, self.exists_if = separate_versions, exists_if
        self.path: tuple[Expr, ...] = ()

    def copy_to(self, joined: Ref, last: Ref) -> Program:
        """Return the statements that copy an arm's last version to the version of the join.

        Return no statement if the state does not exist in this arm. If that is unknown, the copy
        runs under the condition that the state exists.
        """
        condition = self.exists_if.get(joined.name)
        if condition is not None and _negated(condition) in self.path:
            return ()
        return (
            under_condition(None if condition in self.path else condition, Assign(joined, last)),
        )


def under_condition(condition: Expr | None, stmt: Assign) -> Stmt:
    """Return a statement that runs only if a condition holds; None stands for no condition."""
    match condition:
        case None:
            return stmt
        case Call("not", (inner,)):  # other branches test `inner`, too
            return If(inner, (), (stmt,))
    return If(condition, (stmt,))


def _negated(condition: Expr) -> Expr:
    match condition:
        case Call("not", (inner,)):
            return inner
    return Call("not", (condition,))


def _versioned(
    program: Program,
    current_versions: dict[str, int],
    some_paths: dict[str, int],
    versions: _Versions,
) -> Program:
    """Return a block in SSA form, and bring both mappings up to its end.

    `some_paths` has the last version of each name that has a value on some paths only.
    """
    out: list[Stmt] = []
    for stmt in program:
        if isinstance(stmt, Assign):
            value = _with_versions(stmt.value, current_versions, versions)
            name = stmt.target.name
            versions[name] += 1
            current_versions[name] = versions[name]
            out.append(
                replace(stmt, target=replace(stmt.target, version=versions[name]), value=value)
            )
        else:
            out.append(_versioned_if(stmt, current_versions, some_paths, versions))
    return tuple(out)


def _with_versions(expr: Expr, current_versions: dict[str, int], versions: _Versions) -> Expr:
    """Return an expression with versions, except in `fresh` and in properties of a parameter.

    A name that only an earlier arm assigns has the version of this arm: the statement that reads it
    is under the same condition.
    """
    match expr:
        case Ref(name):
            return replace(expr, version=current_versions.get(name, versions[name]))
        case Call(word, _) if word == "fresh" or word in PROPERTIES:
            return expr
    return rebuild(expr, lambda child: _with_versions(child, current_versions, versions))


def _versioned_if(
    stmt: If, current_versions: dict[str, int], some_paths: dict[str, int], versions: _Versions
) -> If:
    """Return a branch in SSA form, whose arms end in the same version of each name."""
    condition = _with_versions(stmt.condition, current_versions, versions)
    ends = [dict(current_versions), dict(current_versions)]
    partly: list[dict[str, int]] = [{}, {}]
    outer_path = versions.path
    paths = [(*outer_path, holds) for holds in (condition, _negated(condition))]
    arms = []
    for arm, end, part, path in zip((stmt.then, stmt.orelse), ends, partly, paths, strict=True):
        versions.path = path
        arms.append(_versioned(arm, end, part, versions))
    for name in sorted(ends[0].keys() & ends[1].keys()):
        if any(end[name] != current_versions.get(name) for end in ends):
            versions[name] += 1
            joined = Ref(name, versions[name])
            for i, end in enumerate(ends):
                versions.path, is_unchanged = paths[i], end[name] == current_versions.get(name)
                arms[i] = _ending_in(arms[i], Ref(name, end[name]), joined, versions, is_unchanged)
            current_versions[name] = joined.version
    last = [{**part, **end} for part, end in zip(partly, ends, strict=True)]
    for name in sorted((last[0].keys() | last[1].keys()) - current_versions.keys()):
        if name in last[0] and name in last[1]:
            versions[name] += 1
            arms = [
                _renamed(arm, Ref(name, each[name]), Ref(name, versions[name]))
                for arm, each in zip(arms, last, strict=True)
            ]
        some_paths[name] = versions[name]
    versions.path = outer_path
    return replace(stmt, condition=condition, then=arms[0], orelse=arms[1])


def _ending_in(
    arm: Program, last: Ref, joined: Ref, versions: _Versions, is_unchanged: bool
) -> Program:
    """Return an arm with its last version of a name renamed to `joined`, or copied to it."""
    if versions.separate_versions or is_unchanged:
        return (*arm, *versions.copy_to(joined, last))
    return _renamed(arm, last, joined)


def _renamed(arm: Program, last: Ref, joined: Ref) -> Program:
    return rename_program(arm, lambda ref: joined if ref == last else ref)


def split_live_ranges(algorithm: Algorithm, split_tensors: bool = False) -> Algorithm:
    """Return an SSA rule in which every version but the first of a small value has a new name.

    A state of a `Finish` is stored only where it gets its last value, which keeps the name. A name
    that a matrix op assigns is split in the same way, because a later sweep may need every version.
    So are, with `split_tensors`, the parameter, all tensor states and the operands of matrix ops.
    """
    algorithm = _with_copies_of_old_states(algorithm)
    to_split = {state.symbol for state in algorithm.finish_states()}
    # States of the scalar program may get a value from a reduction.
    scalars, kinds = {state.symbol for state in algorithm.scalar_states()}, kinds_of(algorithm)
    to_split |= {ref.name for ref, kind in kinds.items() if not kind.is_scalar} & scalars
    matrix_ops = [a for a in assigns(algorithm.rule) if is_matrix_op(a.value)]
    to_split |= {a.target.name for a in matrix_ops}
    if split_tensors:
        to_split |= algorithm.stored_tensors
        to_split |= {ref.name for a in matrix_ops for ref in refs(a.value)}
    written = dict.fromkeys(a.target for a in assigns(algorithm.rule))
    # Plans of one rule call their last matrix op by one name, whatever branches each has lost.
    last_versions = {ref.name: ref for ref in sorted(written, key=lambda ref: ref.version)}
    split = [ref for ref in written if ref.name in to_split and ref != last_versions[ref.name]]
    versions_to_rename = [*_later_small_values(algorithm), *split]
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


def _new_names(algorithm: Algorithm, names: Iterable[str], suffix: str = "") -> list[str]:
    """Return, for each name, a free name that consists of it and a suffix or a number."""
    used_names = names_of_rule(algorithm)
    new_names: list[str] = []
    for name in names:
        candidates = chain([f"{name}{suffix}"] if suffix else [], numbered(f"{name}{suffix}"))
        new_names.append(next(n for n in candidates if is_free(n, used_names)))
        used_names.add(new_names[-1])
    return new_names


def copy_overwritten_scalars(cut: CutRule) -> CutRule:
    """Return the rule with a copy of each overwritten scalar, which its phases read.

    The scalar program runs to its end before the first phase, and a phase may assign a scalar that
    a later phase reads. Without a copy, the reader would get the new value instead of the old one.
    """
    copies: dict[Ref, Ref] = {}
    kinds = dict(cut.kinds)
    for ref in _overwritten_scalars(cut.scalars, cut.programs, kinds):
        name, used_names = f"{ref.name}_before", {each.name for each in kinds}
        copies[ref] = Ref(next(n for n in chain([name], numbered(name)) if n not in used_names))
        kinds[copies[ref]] = kinds[ref]
    if not copies:
        return cut
    input_copies = tuple(Assign(copy, ref) for ref, copy in copies.items() if ref.version == 0)
    scalars = (*input_copies, *_with_copies(cut.scalars, copies))
    renamed = [map_expressions(p, lambda expr: replace_reads(expr, copies)) for p in cut.programs]
    return replace(cut.with_programs(renamed), scalars=scalars, kinds=kinds)


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
