"""Convert a rule to SSA form: every assignment gets its own version of its name.

Both arms of a branch end in the same version of each name that either assigns; this replaces phi
nodes. So every version is assigned exactly once on each path, and a printer can still print all
versions of a name as one variable. The exception is a path on which a state does not exist: it has
no version of this state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.kinds import declared_kinds
from optgen.ir.nodes import Assign, Call, Expr, If, Program, Ref, Stmt, rebuild, rename_program
from optgen.ir.ops import PROPERTIES


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
        rule=_versioned(algorithm.rule, current_versions, _Versions(separate_versions, conditions)),
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


def _versioned(program: Program, current_versions: dict[str, int], versions: _Versions) -> Program:
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
            out.append(_versioned_if(stmt, current_versions, versions))
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


def _versioned_if(stmt: If, current_versions: dict[str, int], versions: _Versions) -> If:
    """Return a branch in SSA form, whose arms end in the same version of each name."""
    condition = _with_versions(stmt.condition, current_versions, versions)
    end_versions = [dict(current_versions), dict(current_versions)]
    outer_path = versions.path
    paths = [(*outer_path, holds) for holds in (condition, _negated(condition))]
    arms = []
    for arm, end, path in zip((stmt.then, stmt.orelse), end_versions, paths, strict=True):
        versions.path = path
        arms.append(_versioned(arm, end, versions))
    for name in sorted(end_versions[0].keys() & end_versions[1].keys()):
        if any(end[name] != current_versions.get(name) for end in end_versions):
            versions[name] += 1
            joined = Ref(name, versions[name])
            for i, end in enumerate(end_versions):
                versions.path, is_unchanged = paths[i], end[name] == current_versions.get(name)
                arms[i] = _ending_in(arms[i], Ref(name, end[name]), joined, versions, is_unchanged)
            current_versions[name] = joined.version
    versions.path = outer_path
    return replace(stmt, condition=condition, then=arms[0], orelse=arms[1])


def _ending_in(
    arm: Program, last: Ref, joined: Ref, versions: _Versions, is_unchanged: bool
) -> Program:
    """Return an arm with its last version of a name renamed to `joined`, or copied to it."""
    if versions.separate_versions or is_unchanged:
        return (*arm, *versions.copy_to(joined, last))
    return rename_program(
        arm, lambda ref: replace(ref, version=joined.version) if ref == last else ref
    )
