"""Convert a rule to SSA form: every assignment gets its own version of its name.

Both arms of a branch end in the same version of each name that they assign; this replaces phi
nodes. So every version is assigned exactly once on each path, and a printer can still print all
versions of a name as one variable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Assign, Call, Expr, If, Program, Ref, Stmt, rebuild, rename_program
from optgen.ir.ops import PROPERTIES
from optgen.ir.value_kinds import declared_kinds


def to_ssa(algorithm: Algorithm, apart: bool = False) -> Algorithm:
    """Return the algorithm with its rule in SSA form; inputs are version 0.

    With `apart`, an arm's last value keeps its own version, and a copy assigns it to the version of
    the join. Then no version is computed in both arms.
    """
    current = dict.fromkeys(declared_kinds(algorithm), 0)
    exist = dict(_conditions(algorithm)) if apart else {}
    return replace(algorithm, rule=_versioned(algorithm.rule, current, _Count(apart, exist)))


def _conditions(algorithm: Algorithm) -> Iterator[tuple[str, Expr]]:
    """Yield each state that may be missing, with the condition under which it exists."""
    flags = {hyper.name for hyper in algorithm.hypers if hyper.type == "flag"}
    for state in algorithm.states:
        if state.when:
            name = state.when.removeprefix("not ")
            holds = Ref(name) if name in flags else Call("truth", (Ref(name),))
            yield state.symbol, holds if name == state.when else Call("not", (holds,))


class _Count(Counter[str]):
    """Counter of the versions of names.

    `exist` has the conditions of states that may be missing, and `path` the conditions that hold at
    the current statement.
    """

    def __init__(self, apart: bool, exist: Mapping[str, Expr]) -> None:
        super().__init__()
        self.apart, self.exist = apart, exist
        self.path: tuple[Expr, ...] = ()

    def copy_to(self, joined: Ref, last: Ref) -> Program:
        """Return a copy of an arm's last version; a missing state has no value to copy."""
        copy = Assign(joined, last)
        condition = self.exist.get(joined.name)
        if condition is None or condition in self.path:
            return (copy,)
        return () if _negated(condition) in self.path else (If(condition, (copy,)),)


def _negated(condition: Expr) -> Expr:
    match condition:
        case Call("not", (inner,)):
            return inner
    return Call("not", (condition,))


def _versioned(program: Program, current: dict[str, int], count: _Count) -> Program:
    out: list[Stmt] = []
    for stmt in program:
        if isinstance(stmt, Assign):
            value = _read(stmt.value, current)
            name = stmt.target.name
            count[name] += 1
            current[name] = count[name]
            out.append(replace(stmt, target=_at(stmt.target, current), value=value))
        else:
            out.append(_versioned_if(stmt, current, count))
    return tuple(out)


def _read(expr: Expr, current: dict[str, int]) -> Expr:
    """Return an expression with versions, except in `fresh` and in properties of a parameter."""
    match expr:
        case Ref():
            return _at(expr, current)
        case Call(word, _) if word == "fresh" or word in PROPERTIES:
            return expr
    return rebuild(expr, lambda child: _read(child, current))


def _at(ref: Ref, current: dict[str, int]) -> Ref:
    return replace(ref, version=current[ref.name])


def _versioned_if(stmt: If, current: dict[str, int], count: _Count) -> If:
    condition = _read(stmt.condition, current)
    ends = [dict(current), dict(current)]
    paths = [(*count.path, holds) for holds in (condition, _negated(condition))]
    arms = []
    for arm, end, path in zip((stmt.then, stmt.orelse), ends, paths, strict=True):
        count.path = path
        arms.append(_versioned(arm, end, count))
    for name in sorted(ends[0].keys() & ends[1].keys()):
        if any(end[name] != current.get(name) for end in ends):
            count[name] += 1
            joined = Ref(name, count[name])
            for i, end in enumerate(ends):
                count.path, unchanged = paths[i], end[name] == current.get(name)
                arms[i] = _ending_in(arms[i], Ref(name, end[name]), joined, count, unchanged)
            current[name] = joined.version
    count.path = paths[0][:-1]
    return replace(stmt, condition=condition, then=arms[0], orelse=arms[1])


def _ending_in(arm: Program, last: Ref, joined: Ref, count: _Count, unchanged: bool) -> Program:
    """Return an arm with its last version of a name renamed to `joined`, or copied to it."""
    if count.apart or unchanged:
        return (*arm, *count.copy_to(joined, last))
    return rename_program(
        arm, lambda ref: replace(ref, version=joined.version) if ref == last else ref
    )
