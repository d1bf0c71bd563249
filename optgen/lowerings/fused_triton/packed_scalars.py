"""Pack the scalars that a plan's kernels pass to one another: one array of numbers per tensor.

The prologue stores the results of the scalar program. The numbers that a `Finish` computes from
reductions come after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from optgen.ir.generated_names import is_free
from optgen.ir.kinds import Axes
from optgen.ir.nodes import Assign, Call, Const, Expr, Program, Ref, children
from optgen.ir.ops import CONDITION_OPERANDS
from optgen.ir.plan import Plan, Stream
from optgen.lowerings.condition_names import candidate_names
from optgen.lowerings.fused_triton.expression_printer import constant, variable


class PackedScalars:
    """Layout of the packed scalars, in the order in which phases first read them.

    `program_results` maps the names of the scalar program's results to their expressions.
    `finish_numbers` has the names of the numbers that a `Finish` computes later.
    """

    def __init__(
        self,
        plan: Plan,
        bodies: Iterable[Program],
        streams: Iterable[Stream],
        finish_numbers: Iterable[str] = (),
    ) -> None:
        self._plan = plan
        self._constexpr_flags = {s.when.removeprefix("not ") for s in streams if s.when is not None}
        self._conditions: dict[str, Expr] = {}
        self.program_results: dict[str, Expr] = {}
        for body in bodies:
            self.program_results |= {
                n: expr for n, expr, is_scalar in self._numbers_read(body) if is_scalar
            }
        self.finish_numbers = tuple(finish_numbers)

    @property
    def count(self) -> int:
        """Number of packed scalars per tensor."""
        return len(self.program_results) + len(self.finish_numbers)

    def offset(self, name: str) -> int:
        """Return the index of a number in the array."""
        return [*self.program_results, *self.finish_numbers].index(name)

    def offsets(self, body: Program) -> Mapping[str, int]:
        """Return the offsets of the numbers that a body reads, in order of the first read."""
        wanted = dict.fromkeys(name for name, _, _ in self._numbers_read(body))
        known = {*self.program_results, *self.finish_numbers}
        return {name: self.offset(name) for name in wanted if name in known}

    def _numbers_read(self, body: Program) -> Iterator[tuple[str, Expr, bool]]:
        """Yield the numbers that a body reads.

        Each comes with its expression, and with whether the scalar program computes it.
        """
        for stmt in body:
            if isinstance(stmt, Assign):
                yield from self._numbers_read_by_value(stmt.value)
                continue
            name, expr = self._branch_entry(stmt.condition)
            if name:
                yield name, expr, True
            yield from self._numbers_read(stmt.then)
            yield from self._numbers_read(stmt.orelse)

    def _numbers_read_by_value(self, value: Expr) -> Iterator[tuple[str, Expr, bool]]:
        """Yield the numbers that a value reads: its names, and its uniform num_conditions."""
        if isinstance(value, Ref) and self._plan.kinds[value].axes is Axes.NONE:
            yield variable(value.name), value, self._plan.kinds[value].is_scalar
        num_conditions = CONDITION_OPERANDS.get(value.op, 0) if isinstance(value, Call) else 0
        for position, child in enumerate(children(value)):
            if position < num_conditions and self._is_packed_condition(child):
                yield *self._entry(child), True
            else:
                yield from self._numbers_read_by_value(child)

    def _is_packed_condition(self, condition: Expr) -> bool:
        """Tell whether the scalar program evaluates a condition."""
        return not isinstance(condition, Const) and self._plan.kind(condition).is_scalar

    def packed_name(self, condition: Expr) -> str | None:
        """Return the name of a condition that the scalar program evaluates; None for any other."""
        return self._entry(condition)[0] if self._is_packed_condition(condition) else None

    def branch_condition(self, expr: Expr) -> str:
        """Return the text of a branch condition in a kernel."""
        name, _ = self._branch_entry(expr)
        if name:
            return f"{name} != 0"
        match expr:
            case Call("not", (inner,)):
                return f"not {self.branch_condition(inner)}"
            case Ref(flag) | Call("truth", (Ref(flag),)):
                return constant(flag)
        raise TypeError(f"not a condition of a sweep: {expr!r}")

    def _branch_entry(self, expr: Expr) -> tuple[str, Expr]:
        """Return the name and expression of a condition; the name is "" for a constexpr."""
        match expr:
            case Ref(name) | Call("truth", (Ref(name),)) if name in self._constexpr_flags:
                return "", expr
            case Call("not", (inner,)) if not self._branch_entry(inner)[0]:
                return "", expr
        return self._entry(expr)

    def _entry(self, expr: Expr) -> tuple[str, Expr]:
        """Return the name and the expression of the packed scalar that stands for a condition.

        For the truth of a number that is never None, this is the number.
        """
        match expr:
            case (Ref() as ref) | Call("truth", (Ref() as ref,)):
                hyper = self._plan.algorithm.hyper(ref.name)
                if not (hyper and hyper.optional):
                    return variable(ref.name), ref
        return self._condition_name(expr), expr

    def _condition_name(self, expr: Expr) -> str:
        """Return a name for a condition: the condition in words, if short and free."""
        match expr:
            case Call("fresh", (Ref(state),)):  # the name may contain the state's name
                used_names = {r.name for r in self._plan.kinds} - {state}
            case _:
                used_names = {r.name for r in self._plan.kinds}
        for name in map(variable, candidate_names(expr)):
            if is_free(name, used_names) and self._conditions.setdefault(name, expr) == expr:
                return name
        raise AssertionError("candidate_names() is infinite")
