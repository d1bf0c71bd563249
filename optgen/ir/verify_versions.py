"""Check, on every path of a program, that each read finds the version that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

from optgen.ir.kinds import Kind, kind_of
from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    If,
    Program,
    Ref,
    assigns,
    children,
    copy_source,
    is_self_copy,
)
from optgen.ir.ops import PROPERTIES
from optgen.ir.print_ir import expr_text

Versions = dict[str, frozenset[int]]
"""Versions that a variable holds. After a copy to the next version, it holds both."""
Path = Mapping[Expr, bool]
"""A path: the conditions known on it, and whether each of them holds."""


class VerifyError(Exception):
    """An algorithm or plan that breaks an invariant of the IR."""


class StaleReadError(VerifyError):
    """A name that is read after a later version of it was written."""


@dataclass(frozen=True)
class _Past:
    """The programs that ran before a statement.

    `rerun` runs them again on a path with more known conditions, and returns the versions after
    them. `conditions` are the conditions of their branches.
    """

    rerun: Callable[[Path], Versions]
    conditions: frozenset[Expr]


@dataclass
class Paths:
    """Walk over every path of a program, with the current version of each name.

    With `has_copies`, both arms of a branch end in the same version of a name; one arm may copy it.
    A plan leaves such copies out. So without `has_copies`, a version that is not in `written`,
    because only a copy would write it, stands for the version before it.
    """

    kinds: Mapping[Ref, Kind]
    written: set[Ref]
    has_copies: bool = False
    cache: dict[tuple[object, ...], Versions] = field(default_factory=dict, init=False)
    """Cached versions, by position in a program and path."""

    def run(
        self,
        program: Program,
        before: Versions,
        assumed: Path | None = None,
        earlier_assigns: list[tuple[Assign, Path]] | None = None,
        past: _Past | None = None,
        num_statements: int | None = None,
    ) -> Versions:
        """Check a program, and return the versions after it.

        Args:
            program: the statements.
            before: the versions before the program.
            assumed: the conditions known on this path.
            earlier_assigns: the assignments so far with their paths; this call appends to it.
            past: the programs that ran before.
            num_statements: the number of statements to run; None for all.
        """
        current, path = dict(before), dict(assumed or {})
        earlier_assigns = [] if earlier_assigns is None else earlier_assigns
        past = past or _Past(lambda path: dict(before), frozenset())
        for index, stmt in enumerate(program[:num_statements]):
            if isinstance(stmt, Assign):
                self.read(stmt.value, current, path)
                for other, other_path in earlier_assigns:
                    differs = other.target == stmt.target and other.value != stmt.value
                    if differs and not _exclude_each_other(path, other_path):
                        fail("assigned two values on one path", stmt.target)
                current[stmt.target.name] = _versions_after(stmt, current)
                earlier_assigns.append((stmt, path))
            else:
                stmt = _positive(stmt)
                past_of_stmt = self._past_of(program, index, past)
                arm_starts = {True: current, False: current}
                if stmt.condition in past_of_stmt.conditions and stmt.condition not in path:
                    # An earlier branch on this condition took the same arm.
                    for holds in arm_starts:
                        arm_starts[holds] = past_of_stmt.rerun({**path, stmt.condition: holds})
                current = self._branch(
                    stmt, current, path, earlier_assigns, arm_starts, past_of_stmt
                )
        return current

    def _past_of(self, program: Program, index: int, past: _Past) -> _Past:
        """Return the past of the statement at an index of a program, given the program's past."""

        def rerun(path: Path) -> Versions:
            key = (id(program), index, frozenset(path.items()))
            if key not in self.cache:
                self.cache[key] = self.run(
                    program, past.rerun(path), path, past=past, num_statements=index
                )
            return self.cache[key]

        return _Past(rerun, past.conditions | set(_conditions(program[:index])))

    def _branch(
        self,
        stmt: If,
        before: Versions,
        path: Path,
        earlier_assigns: list[tuple[Assign, Path]],
        arm_starts: Mapping[bool, Versions],
        past: _Past,
    ) -> Versions:
        """Check a branch; `arm_starts` are the versions at the start of each arm."""
        self.read(stmt.condition, before, path)
        if kind_of(stmt.condition, self.kinds.__getitem__).is_tensor:
            fail("an if on a tensor", stmt.condition)
        known_truth = path.get(stmt.condition)
        if known_truth is not None:  # an outer branch has the same condition, so one arm is dead
            live, dead = (stmt.then, stmt.orelse) if known_truth else (stmt.orelse, stmt.then)
            return _after_taken_arm(
                before, self.run(live, before, path, earlier_assigns, past), dead
            )
        then = self.run(
            stmt.then, arm_starts[True], {**path, stmt.condition: True}, earlier_assigns, past
        )
        orelse = self.run(
            stmt.orelse, arm_starts[False], {**path, stmt.condition: False}, earlier_assigns, past
        )
        return self._joined(before, arm_starts, then, orelse)

    def _joined(
        self,
        before: Versions,
        arm_starts: Mapping[bool, Versions],
        then: Versions,
        orelse: Versions,
    ) -> Versions:
        """Return the versions after both arms of a branch.

        A variable holds the versions that both arms leave; other versions cannot be read. A plan
        is an exception: it leaves out the copy in an arm that keeps the old versions. Then the
        variable holds the other arm's versions.
        """
        after: Versions = {}
        for name in then.keys() & orelse.keys():
            a, b = then[name], orelse[name]
            keeps_a = not self.has_copies and a == arm_starts[True].get(name)
            keeps_b = not self.has_copies and b == arm_starts[False].get(name)
            if keeps_a and keeps_b:
                after[name] = before[name]
            elif keeps_a or keeps_b:
                after[name] = b if keeps_a else a
            else:
                after[name] = a & b
        return after

    def read(self, expr: Expr, current: Versions, path: Path) -> None:
        """Check each name that an expression reads. `fresh` and properties read no value."""
        match expr:
            case Ref():
                self.read_ref(expr, current, path)
            case Call(op, _) if op == "fresh" or op in PROPERTIES:
                return
            case _:
                for child in children(expr):
                    self.read(child, current, path)

    def read_ref(self, ref: Ref, current: Versions, path: Path) -> None:
        """Check that a name is defined, and that its variable holds the version that is read."""
        if ref not in self.kinds:
            fail("a name without a kind", ref)
        if ref.name not in current:
            fail("undefined on this path", ref)
        is_left_out = not self.has_copies and ref.version > 0 and ref not in self.written
        if ref.version not in current[ref.name] and not is_left_out:
            held = " or ".join(map(str, sorted(current[ref.name]))) or "no common version"
            raise StaleReadError(f"{expr_text(ref)} is read where its variable holds {held}")


@dataclass
class SweepPaths(Paths):
    """Walk over the paths of a sweep or a finish, after the scalar program on the same path.

    `inputs` are the versions before the scalar program, whose paths `scalar_paths` walks over.
    """

    scalar_paths: Paths = field(default_factory=lambda: Paths({}, set()))
    scalars: Program = ()
    inputs: Versions = field(default_factory=dict)

    def read_ref(self, ref: Ref, current: Versions, path: Path) -> None:
        """Check one name. The variable of a scalar holds what the scalar program leaves in it."""
        if ref in self.kinds and self.kinds[ref].is_scalar:
            self.scalar_paths.read_ref(ref, self._scalars_on(path), path)
        else:
            super().read_ref(ref, current, path)

    def _scalars_on(self, path: Path) -> Versions:
        """Return the versions after the scalar program on a path."""
        key = ("scalars", frozenset(path.items()))
        if key not in self.cache:
            self.cache[key] = self.scalar_paths.run(self.scalars, self.inputs, path)
        return self.cache[key]


def _conditions(program: Program) -> Iterator[Expr]:
    """Yield every condition of a program, including those inside branches."""
    for stmt in program:
        if isinstance(stmt, If):
            yield _positive(stmt).condition
            yield from _conditions((*stmt.then, *stmt.orelse))


def _positive(stmt: If) -> If:
    """Return a branch on `not x` as a branch on `x`, so that paths can compare conditions."""
    match stmt.condition:
        case Call("not", (inner,)):
            return replace(stmt, condition=inner, then=stmt.orelse, orelse=stmt.then)
    return stmt


def _versions_after(stmt: Assign, current: Versions) -> frozenset[int]:
    """Return the versions that the target's variable holds after an assignment."""
    written = frozenset((stmt.target.version,))
    source = copy_source(stmt) if is_self_copy(stmt) else None
    held = current.get(stmt.target.name, frozenset())
    return held | written if source is not None and source.version in held else written


def _after_taken_arm(before: Versions, live_versions: Versions, dead: Program) -> Versions:
    """Return the versions after a branch of which one arm is dead on this path.

    If only the dead arm assigns a variable, statements after the branch read the last version of
    the dead arm. So the variable also holds that version.
    """
    joined = {a.target.name: frozenset((a.target.version,)) for a in assigns(dead)}
    return {
        name: held | joined.get(name, frozenset()) if held == before.get(name) else held
        for name, held in live_versions.items()
    }


def _exclude_each_other(path: Path, other: Path) -> bool:
    """Tell whether no run can take both paths."""
    return any(other.get(condition) is (not holds) for condition, holds in path.items())


def written_in(program: Program) -> set[Ref]:
    """Return every name, with its version, that a program assigns."""
    return {a.target for a in assigns(program)}


def fail(message: str, expr: Expr) -> NoReturn:
    """Raise a `VerifyError` that shows an expression."""
    raise VerifyError(f"{message}: {expr_text(expr)}")
