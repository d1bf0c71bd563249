"""The row of numbers that the kernels of a plan hand to one another, one row per tensor.

The prologue writes what the scalar program knows; what a `Finish` makes of reductions follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from optgen.ir.generated_names import is_free
from optgen.ir.nodes import Assign, Call, Const, Expr, Program, Ref, children
from optgen.ir.ops import CONDITIONS
from optgen.ir.plan import Plan, Stream
from optgen.ir.value_kinds import Axes
from optgen.lowerings.conditions import names
from optgen.lowerings.fused_triton.expressions import constant, variable


class Row:
    """Names the numbers that phases read, in the order in which they read them first.

    `entries` are those of the scalar program, with their meanings; `numbers` those made later.
    """

    def __init__(
        self,
        plan: Plan,
        bodies: Iterable[Program],
        streams: Iterable[Stream],
        numbers: Iterable[str] = (),
    ) -> None:
        self._plan = plan
        self._constexpr = {s.when.removeprefix("not ") for s in streams if s.when is not None}
        self._conditions: dict[str, Expr] = {}
        self.entries: dict[str, Expr] = {}
        for body in bodies:
            self.entries |= {n: meaning for n, meaning, early in self._read(body) if early}
        self.numbers = tuple(numbers)

    @property
    def width(self) -> int:
        """How many numbers a tensor has."""
        return len(self.entries) + len(self.numbers)

    def place(self, name: str) -> int:
        """Where a number stands."""
        return [*self.entries, *self.numbers].index(name)

    def places(self, body: Program) -> Mapping[str, int]:
        """Where the numbers that a body reads stand, in the order in which it reads them first."""
        wanted = dict.fromkeys(name for name, _, _ in self._read(body))
        known = {*self.entries, *self.numbers}
        return {name: self.place(name) for name in wanted if name in known}

    def _read(self, body: Program) -> Iterator[tuple[str, Expr, bool]]:
        """The numbers a body reads: name, meaning, and whether the scalar program knows it."""
        for stmt in body:
            if isinstance(stmt, Assign):
                yield from self._read_value(stmt.value)
                continue
            name, meaning = self._flag(stmt.condition)
            if name:
                yield name, meaning, True
            yield from self._read(stmt.then)
            yield from self._read(stmt.orelse)

    def _read_value(self, value: Expr) -> Iterator[tuple[str, Expr, bool]]:
        """The same of a value: the names in it, and the conditions that are one answer."""
        if isinstance(value, Ref) and self._plan.kinds[value].axes is Axes.NONE:
            yield variable(value.name), value, self._plan.kinds[value].is_scalar
        asked = CONDITIONS.get(value.op, 0) if isinstance(value, Call) else 0
        for position, child in enumerate(children(value)):
            if position < asked and self._is_answer(child):
                yield *self._entry(child), True
            else:
                yield from self._read_value(child)

    def _is_answer(self, condition: Expr) -> bool:
        return not isinstance(condition, Const) and self._plan.kind(condition).is_scalar

    def answer(self, condition: Expr) -> str | None:
        """Return the name of a condition that the scalar program answers; None of any other."""
        return self._entry(condition)[0] if self._is_answer(condition) else None

    def condition(self, expr: Expr) -> str:
        """A branch of the sweep as its kernel writes it."""
        name, _ = self._flag(expr)
        if name:
            return f"{name} != 0"
        match expr:
            case Call("not", (inner,)):
                return f"not {self.condition(inner)}"
            case Ref(flag) | Call("truth", (Ref(flag),)):
                return constant(flag)
        raise TypeError(f"no condition of a sweep: {expr!r}")

    def _flag(self, expr: Expr) -> tuple[str, Expr]:
        """The entry that holds a condition's truth, and what it means; no name for a constexpr."""
        match expr:
            case Ref(name) | Call("truth", (Ref(name),)) if name in self._constexpr:
                return "", expr
            case Call("not", (inner,)) if not self._flag(inner)[0]:
                return "", expr
        return self._entry(expr)

    def _entry(self, expr: Expr) -> tuple[str, Expr]:
        """The entry that holds a condition's truth; a number is its own, unless it may be None."""
        match expr:
            case (Ref() as ref) | Call("truth", (Ref() as ref,)):
                hyper = self._plan.algorithm.hyper(ref.name)
                if not (hyper and hyper.optional):
                    return variable(ref.name), ref
        return self._named(expr), expr

    def _named(self, expr: Expr) -> str:
        """The name of a condition: what it says, or a number where that is long or taken."""
        match expr:
            case Call("fresh", (Ref(state),)):  # whose relative the name is
                taken = {r.name for r in self._plan.kinds} - {state}
            case _:
                taken = {r.name for r in self._plan.kinds}
        for name in map(variable, names(expr)):
            if is_free(name, taken) and self._conditions.setdefault(name, expr) == expr:
                return name
        raise AssertionError("numbers do not end")
