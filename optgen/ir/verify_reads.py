"""Check that each read of a rule or plan finds the version that it names.

`passes/plan_rule.py` runs this check for rules cut into phases, and tests run it after every pass.
A printer turns all versions of a name into one variable. So a read is correct if its version is the
last one written on every path that leads to the read. A path is a set of conditions, each true or
false. The writes before a read are searched backwards: the first write that may have run decides,
and the paths on which it has not run are searched further.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from optgen.ir.kinds import Kind, declared_kinds, kind_of
from optgen.ir.nodes import Assign, Call, Expr, If, Program, Ref, is_self_copy
from optgen.ir.plan import Finish, HostCall, Plan, Sweep, reads
from optgen.ir.print_ir import expr_text

Path = Mapping[Expr, bool]
"""A path: the conditions known on it, and whether each of them holds."""


class VerifyError(Exception):
    """An algorithm or plan that breaks an invariant of the IR."""


class StaleReadError(VerifyError):
    """A name that is read after a later version of it was written."""


def verify_reads(plan: Plan) -> None:
    """Check that every read of a plan finds the version that it means.

    The plan may be uncut, and its values may have any form.

    Raises:
        StaleReadError: a variable holds another version; the message shows the read.
    """
    programs = [phase.body for phase in plan.phases if not isinstance(phase, HostCall)]
    written = written_versions([plan.scalars, *programs])
    for phase in plan.phases:
        if isinstance(phase, HostCall):
            written.setdefault(phase.target, []).append({})
    variables = Variables(plan.kinds, declared_kinds(plan.algorithm), written)
    variables.run(plan.scalars)
    for phase in plan.phases:
        match phase:
            case Sweep(streams, body):
                before = {name: len(writes) for name, writes in variables.writes.items()}
                variables.run(body)
                stored = {stream.name for stream in streams if stream.stored}
                reduced = {stmt.target.name for stmt in phase.reductions}
                variables.forget(before, stored | reduced)  # the others are lost
            case Finish(body):
                variables.run(body)
            case HostCall(target, _, args):
                for arg in args:
                    variables.read(arg)
                variables.write(target)


@dataclass(frozen=True)
class _Write:
    """Write of a version, on a path. A copy of a name to its next version changes no value."""

    ref: Ref
    path: Path
    is_copy: bool = False


@dataclass
class Variables:
    """Walk over programs in the order in which they run, with the writes of each name so far.

    * `inputs`: the names that have a value, version 0, before the first program.
    * `written`: the paths of all writes of each version, also of the later ones.
    * `has_copies`: both arms of a branch end in the same version of a name; one arm may copy it. A
      plan leaves such copies out. Then a version that no statement of a path writes stands on this
      path for an earlier one.
    """

    kinds: Mapping[Ref, Kind]
    inputs: Collection[str]
    written: Mapping[Ref, Collection[Path]]
    has_copies: bool = False
    writes: dict[str, list[_Write]] = field(default_factory=dict)

    def run(self, program: Program, path: Path | None = None) -> None:
        """Check the reads of a program, and record its writes."""
        path = path or {}
        for stmt in program:
            if isinstance(stmt, Assign):
                self.read(stmt.value, path)
                self.write(stmt.target, path, is_self_copy(stmt))
                continue
            self.read(stmt.condition, path)
            if kind_of(stmt.condition, self.kinds.__getitem__).is_tensor:
                fail("an if on a tensor", stmt.condition)
            for arm, arm_path in _arms(stmt, path):
                self.run(arm, arm_path)

    def write(self, ref: Ref, path: Path | None = None, is_copy: bool = False) -> None:
        """Record a write."""
        self.writes.setdefault(ref.name, []).append(_Write(ref, path or {}, is_copy))

    def forget(self, before: Mapping[str, int], kept: Collection[str]) -> None:
        """Forget the writes since `before`, the numbers of writes, except those of `kept` names."""
        for name, writes in self.writes.items():
            if name not in kept:
                del writes[before.get(name, 0) :]

    def read(self, expr: Expr, path: Path | None = None) -> None:
        """Check each name that an expression reads. `fresh` and properties read no value."""
        for ref in reads(expr):
            if ref not in self.kinds:
                fail("a name without a kind", ref)
            self._check(ref, path or {})

    def _check(self, ref: Ref, path: Path) -> None:
        """Check that a name is defined, and that its variable holds the version that is read."""
        writes = self.writes.get(ref.name, [])
        paths = [(len(writes), path)]
        seen: set[tuple[int, frozenset[tuple[Expr, bool]]]] = set()
        while paths:
            end, path = paths.pop()
            if (end, frozenset(path.items())) in seen:
                continue
            seen.add((end, frozenset(path.items())))
            index = _last(writes[:end], ref, path)
            if index is None:
                if ref.name not in self.inputs:
                    fail("undefined on this path", ref)
                if ref.version:
                    self._check_is_left_out(ref, 0, path)
                continue
            write = writes[index]
            if write.ref != ref:
                self._check_is_left_out(ref, write.ref.version, {**path, **write.path})
            known = dict(path)
            for condition, holds in write.path.items():
                if condition not in known:
                    paths.append((index, {**known, condition: not holds}))
                    known[condition] = holds

    def _check_is_left_out(self, ref: Ref, held: int, path: Path) -> None:
        """Check that no statement of a path writes a version, because a copy is left out there."""
        is_written = any(
            not _exclude_each_other(path, other) for other in self.written.get(ref, ())
        )
        if self.has_copies or is_written or held >= ref.version:
            raise StaleReadError(f"{expr_text(ref)} is read where its variable holds {held}")


def _last(writes: list[_Write], ref: Ref, path: Path) -> int | None:
    """Return the index of the last write that may run on a path; skip copies to other versions."""
    for index in reversed(range(len(writes))):
        write = writes[index]
        if (write.ref == ref or not write.is_copy) and not _exclude_each_other(write.path, path):
            return index
    return None


def _arms(stmt: If, path: Path) -> Iterator[tuple[Program, Path]]:
    """Yield the arms of a branch that a path may take, with their paths.

    A branch on `not x` is a branch on `x`, so that paths can compare conditions.
    """
    condition, arms = stmt.condition, {True: stmt.then, False: stmt.orelse}
    match condition:
        case Call("not", (inner,)):
            condition, arms = inner, {True: stmt.orelse, False: stmt.then}
    for holds, arm in arms.items():
        if path.get(condition, holds) is holds:
            yield arm, {**path, condition: holds}


def assigns_on_paths(program: Program, path: Path | None = None) -> Iterator[tuple[Assign, Path]]:
    """Yield every assignment of a program, with its path."""
    for stmt in program:
        if isinstance(stmt, Assign):
            yield stmt, path or {}
        else:
            for arm, arm_path in _arms(stmt, path or {}):
                yield from assigns_on_paths(arm, arm_path)


def written_versions(programs: Collection[Program]) -> dict[Ref, list[Path]]:
    """Return the paths on which programs write each version.

    Raises:
        VerifyError: one program assigns two values to a version on one path.
    """
    written: dict[Ref, list[Path]] = {}
    for program in programs:
        values: dict[Ref, list[tuple[Expr, Path]]] = {}
        for stmt, path in assigns_on_paths(program):
            for value, other_path in values.setdefault(stmt.target, []):
                if value != stmt.value and not _exclude_each_other(path, other_path):
                    fail("assigned two values on one path", stmt.target)
            values[stmt.target].append((stmt.value, path))
            written.setdefault(stmt.target, []).append(path)
    return written


def _exclude_each_other(path: Path, other: Path) -> bool:
    """Tell whether no run can take both paths."""
    return any(other.get(condition) is (not holds) for condition, holds in path.items())


def fail(message: str, expr: Expr) -> NoReturn:
    """Raise a `VerifyError` that shows an expression."""
    raise VerifyError(f"{message}: {expr_text(expr)}")
