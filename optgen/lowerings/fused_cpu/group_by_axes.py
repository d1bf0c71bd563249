"""Group the statements of a finish by axes. The statements of a group can share a loop."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from optgen.ir.execution import is_wide
from optgen.ir.kinds import Axes, KindLookup
from optgen.ir.nodes import Assign, If, Program, Stmt, assigns, filter_assigns
from optgen.ir.plan import is_reduction


@dataclass(frozen=True)
class AxesGroup:
    """Adjacent statements of the same axes. A reduction has a group of its own."""

    axes: Axes
    body: Program

    @property
    def reduction(self) -> Assign | None:
        """The reduction of values that the group consists of, or None."""
        (first, *_) = self.body
        return first if isinstance(first, Assign) and is_reduction(first.value) else None

    @property
    def reduces_over_parameters(self) -> bool:
        """Tell whether the group is a reduction over parameters, or a branch with only that."""
        return any(is_wide(a.value) for a in assigns(self.body))


def group_by_axes(program: Program, kind: KindLookup) -> list[AxesGroup]:
    """Return the groups of a program, in its order."""
    groups: list[AxesGroup] = []
    for stmt in _split_by_axes(program, kind):
        axes = kind(next(assigns((stmt,))).target).axes
        if not groups or groups[-1].axes is not axes or _reduces((*groups[-1].body, stmt)):
            groups.append(AxesGroup(axes, (stmt,)))
        else:
            groups[-1] = AxesGroup(axes, (*groups[-1].body, stmt))
    return groups


def _reduces(program: Program) -> bool:
    """Tell whether a program has a reduction, of values or over parameters."""
    return any(is_reduction(a.value) or is_wide(a.value) for a in assigns(program))


def _split_by_axes(program: Program, kind: KindLookup) -> Iterator[Stmt]:
    """Yield the statements of a program, with each branch split by axes.

    A reduction moves out of its branch. A reduction over parameters gets a branch of its own.
    """
    for stmt in program:
        if isinstance(stmt, Assign):
            yield stmt
            continue
        group: list[Assign] = []  # consecutive assignments of the same axes
        for inner in assigns((stmt,)):
            has_other_axes = group and kind(group[0].target).axes is not kind(inner.target).axes
            if has_other_axes or _reduces((inner,)):
                yield from _branch_with(stmt, group)
                group = []
            if is_wide(inner.value):
                yield from _branch_with(stmt, [inner])
            elif _reduces((inner,)):
                yield inner
            else:
                group.append(inner)
        yield from _branch_with(stmt, group)


def _branch_with(stmt: If, wanted: Collection[Assign]) -> Program:
    """Return a branch with only the wanted assignments; an empty program if there are none."""
    return filter_assigns((stmt,), lambda a: any(a is other for other in wanted))
