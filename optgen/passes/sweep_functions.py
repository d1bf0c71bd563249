"""Build functions over lists of tensors from statements of a rule on whole matrices.

A function has phases if its statements have sums. Its lists hold tensors of one shape, and numbers,
rows and columns of these tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal, TypeAlias

from optgen.ir.algorithm import Algorithm, Hyper, State
from optgen.ir.kinds import HEIGHT, WIDTH, Axes, Kind
from optgen.ir.nodes import (
    Assign,
    Const,
    Expr,
    Program,
    Ref,
    refs,
    rename_refs,
)
from optgen.ir.reserved_in_python import free_name
from optgen.passes.hoist_between_sweeps import as_plain_arithmetic
from optgen.passes.separate_matrix_words import has_rows_and_columns

ListShape: TypeAlias = Literal["like", "row", "col", "scalar"]
"""Shapes of the tensors of a list, as states have them."""
EMPTY_LIKE = "empty_like"
"""The op that creates the list into which a function writes."""


@dataclass(frozen=True)
class SweepFunction:
    """Function, and how the rule calls it.

    * `created`: maps each variable that the caller must create to the operands of `EMPTY_LIKE`.
    * `reused`: maps each variable to the dead variable whose memory it takes.
    * `arguments`: the caller's variables in the order of the function's lists.
    * `axes`: the axes of each of these variables.
    * `renamed`: maps each variable to the name under which the call returns its new value.
    """

    function: Algorithm
    created: Mapping[str, tuple[Expr, ...]]
    reused: Mapping[str, str]
    arguments: tuple[str, ...]
    axes: Mapping[str, Axes]
    renamed: Mapping[str, str]


@dataclass(frozen=True)
class SweepBuilder:
    """Builder of a function of a rule.

    * `in_place`: the variables whose tensors a sweep may overwrite: parameter and states.
    * `kinds`: the kind of every variable.
    * `axes`: the axes of the tensors that the sweep goes over. Other lists have a number, a row or
      a column for each of these tensors.
    """

    algorithm: Algorithm
    in_place: frozenset[str]
    kinds: Mapping[Ref, Kind]
    axes: Axes

    def build(
        self,
        statements: Sequence[Assign],
        outputs: Collection[str],
        dead: Collection[str],
        name: str,
    ) -> SweepFunction | None:
        """Return the function of some statements.

        Return None if the function would read no tensors of the shape, or would have no output; or
        if a list would hold numbers of matrices.

        Args:
            statements: statements over tensors of one shape, and their numbers, rows and columns.
            outputs: the variables that other statements read, or that the rule stores.
            dead: the variables that no other statement reads; their memory may be reused.
            name: the name of the function.
        """
        assigned = dict.fromkeys(stmt.target.name for stmt in statements)
        read = self._read_before_assigned(statements)
        axes = self._axes_of_names(statements)
        full = {n for n in axes if axes[n] is self.axes}
        kept = [n for n in assigned if n in outputs]
        reusable = [n for n in read if n in dead and n in full and n not in assigned]
        reused = self._reused(statements, [n for n in kept if n in full], reusable)
        inputs = [n for n in read if n not in reused.values()]
        updated = [n for n in kept if n in self.in_place]
        if full.isdisjoint(set(inputs) - set(updated)):
            reused, inputs = {}, read  # without another list, the copy of a dead one would be lost
        only_read = [n for n in inputs if n not in updated]
        written = [*updated, *(n for n in kept if n not in updated)]
        like = next((n for n in read if n in full), None)
        shapes = {n: self._shape(axes[n]) for n in (*written, *only_read)}
        if not (kept and like and has_rows_and_columns(self.axes)) or None in shapes.values():
            return None
        used_names = {ref.name for ref in self.kinds}
        old_names = {n: free_name(f"{n}_before", used_names) for n in only_read if n in assigned}
        new_names = {n: free_name(f"{n}_after", used_names) for n in old_names if n in kept}
        # The lists of the function, each with the variable of the caller and its axes.
        lists = {n: (new_names.get(n, n), axes[n]) for n in written}
        lists |= {old_names.get(n, n): (n, axes[n]) for n in only_read}
        full_lists = [n for n in lists if lists[n][1] is self.axes]
        read_lists = [n for n in full_lists[1:] if n not in written]
        again = free_name(f"{full_lists[0]}_again", lists)  # nothing reads this list
        param, grad = full_lists[0], (*read_lists, again)[0]
        lists.setdefault(grad, lists[param])
        states = [
            _state(n, self._shape(list_axes), n in written)
            for n, (_, list_axes) in lists.items()
            if n not in (param, grad)
        ]
        body = _with_inputs(statements, old_names | {old: n for n, old in reused.items()})
        function = replace(
            self._function(name, statements, param, grad, states),
            rule=body,
            overwritten=tuple(reused.items()),
        )
        created = {
            new_names.get(n, n): (Ref(like), Const(shapes[n]))
            for n in kept
            if n not in updated and n not in reused
        }
        arguments = tuple(lists[n][0] for n in function.lists)
        return SweepFunction(function, created, reused, arguments, dict(lists.values()), new_names)

    def _axes_of_names(self, statements: Sequence[Assign]) -> dict[str, Axes]:
        """Return the axes of the variables of statements; MATRIX for a variable of two shapes."""
        axes: dict[str, Axes] = {}
        for ref in (r for s in statements for r in (s.target, *refs(s.value))):
            known = axes.setdefault(ref.name, self.kinds[ref].axes)
            axes[ref.name] = known if known is self.kinds[ref].axes else Axes.MATRIX
        return axes

    def _shape(self, axes: Axes) -> ListShape | None:
        """Return the shape of a list's tensors beside those that the sweep goes over."""
        row, column = Axes(self.axes & (1 | HEIGHT)), Axes(self.axes & (1 | WIDTH))
        shapes: dict[Axes, ListShape] = {Axes.NONE: "scalar", row: "row", column: "col"}
        return {**shapes, self.axes: "like"}.get(axes)

    def _read_before_assigned(self, statements: Sequence[Assign]) -> list[str]:
        """Return the tensors that statements read before they assign them, in order."""
        assigned: set[str] = set()
        read: dict[str, None] = {}
        for stmt in statements:
            names = (r.name for r in refs(stmt.value) if not self.kinds[r].is_scalar)
            read |= dict.fromkeys(n for n in names if n not in assigned)
            assigned.add(stmt.target.name)
        return list(read)

    def _reused(
        self, statements: Sequence[Assign], kept_outputs: Sequence[str], dead: Sequence[str]
    ) -> dict[str, str]:
        """Map each new variable to a dead one that is not read after the new one is assigned."""
        reused: dict[str, str] = {}
        for name in kept_outputs:
            assigned_at = next(i for i, stmt in enumerate(statements) if stmt.target.name == name)
            later = {r.name for stmt in statements[assigned_at + 1 :] for r in refs(stmt.value)}
            is_new = name not in self.in_place and name not in self._read_before_assigned(
                statements
            )
            free = [n for n in dead if n not in later and n not in reused.values()]
            if is_new and free:
                reused[name] = free[0]
        return reused

    def _function(
        self,
        name: str,
        statements: Sequence[Assign],
        param: str,
        grad: str,
        states: Iterable[State],
    ) -> Algorithm:
        """Return an algorithm over lists. Numbers are the last streams of a kernel."""
        ordered = sorted(states, key=attrgetter("on_device"))
        numbers = dict.fromkeys(
            r.name for s in statements for r in refs(s.value) if self.kinds[r].is_scalar
        )
        return Algorithm(
            name=name,
            module=self.algorithm.module,
            doc=f"Elementwise part of a step of {self.algorithm.name}, which outlined.py calls.",
            paper="",
            states=tuple(ordered),
            hypers=tuple(Hyper(number, "number", 0.0) for number in numbers),
            rule=tuple(statements),
            param=param,
            grad=grad,
            step=None,
            lists=(param, grad, *(state.symbol for state in ordered)),
            is_sweep=True,
        )


def _state(name: str, shape: ListShape | None, written: bool) -> State:
    """Return a list of a function as a state of this shape."""
    assert shape is not None
    return State(name, name, shape=shape, written=written, on_device=shape == "scalar")


def _with_inputs(statements: Sequence[Assign], inputs: Mapping[str, str]) -> Program:
    """Return statements without versions, which read old values by other names.

    `inputs` maps a variable to the name of its old value, which is read until a statement assigns
    the variable.
    """
    names_of_old = dict(inputs)

    def current(ref: Ref) -> Ref:
        return Ref(names_of_old.get(ref.name, ref.name))

    out = []
    for stmt in statements:
        value: Expr = rename_refs(as_plain_arithmetic(stmt.value), current)
        names_of_old.pop(stmt.target.name, None)
        out.append(Assign(Ref(stmt.target.name), value, stmt.quote, stmt.place))
    return tuple(out)
