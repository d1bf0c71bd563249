"""Cut the phases of a plan into the steps of a C++ kernel: loops, reductions and random draws."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from optgen.ir.execution import is_wide
from optgen.ir.kinds import Axes, KindLookup
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    If,
    Program,
    Ref,
    Stmt,
    assigns,
    expressions,
    filter_assigns,
    names_read,
)
from optgen.ir.ops import SHADOWABLE_FUNCTIONS
from optgen.ir.plan import (
    Finish,
    Plan,
    Sweep,
    is_maximum,
    is_reduction,
    read_before_assigned,
    reads,
)
from optgen.ir.reserved_in_python import free_name, is_free, numbered
from optgen.passes.extract_subexpressions import Draws

_LOOP_NAMES = {
    Axes.TENSOR: "sweep",
    Axes.ROW: "rows",
    Axes.COLUMN: "columns",
    Axes.MATRIX: "matrices",
    Axes.NONE: "numbers",
}


@dataclass(frozen=True)
class Step:
    """Step of a kernel: a loop over values of these axes, a reduction to them, or a draw.

    `reads` and `writes` are values with axes; `numbers_read` and `numbers_written` are numbers of
    the whole tensor. `sweep` is the index of the sweep, over a large matrix, that the step is part
    of or follows.
    """

    name: str
    axes: Axes
    sweep: int
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    numbers_read: tuple[str, ...] = ()
    numbers_written: tuple[str, ...] = ()
    body: Program = ()
    reduction: str = ""  # "sum" or "max_abs", or an op that reduces over parameters; "" for a loop
    over_elements: bool = False  # whether the step reads or writes elements
    draws: Call | None = None  # the call whose random numbers the step makes

    @property
    def reduces_values(self) -> bool:
        """Tell whether the step reduces values with axes."""
        return bool(self.reduction and self.reads)

    @property
    def is_wide(self) -> bool:
        """Tell whether the step reduces one number of each of several parameters."""
        return bool(self.reduction and not self.reads)

    @property
    def is_loop(self) -> bool:
        """Tell whether the step computes values, or numbers of the whole tensor."""
        return not self.reduction and not self.draws

    @property
    def is_total_sum(self) -> bool:
        """Tell whether the step is a sum over all elements, which its loop accumulates."""
        return self.over_elements and self.reduction == "sum" and self.axes is Axes.NONE

    @property
    def index_name(self) -> str:
        """C++ name of the step's index."""
        if self.draws:
            return self.name.upper()
        return f"{'MAKE' if self.reduction else 'RUN'}_{self.name.upper()}"


@dataclass
class PhaseSteps:
    """Steps of a plan, and the axes of their values. `streams` maps streams to their axes.

    The plan has names in place of random numbers; `draws` has the calls that draw them.
    """

    plan: Plan
    streams: dict[str, Axes]
    draws: Draws
    steps: list[Step] = field(default_factory=list)
    axes: dict[str, Axes] = field(default_factory=dict)  # of the values that have axes
    numbers: list[str] = field(default_factory=list)  # values without axes
    sweep: int = -1  # index of the last sweep so far; a finish before the first sweep has -1

    def __post_init__(self) -> None:
        self.axes |= self.streams
        self.used_names = {ref.name for ref in self.plan.kinds}
        self.scalar_states = {state.symbol for state in self.plan.algorithm.scalar_states()}
        self.loop_counts = dict.fromkeys(_LOOP_NAMES, 0)
        for position, phase in enumerate(self.plan.phases):
            names_read_later = self._names_after(position)
            if isinstance(phase, Sweep):
                self.sweep += 1
                self._add_sweep(phase)
            elif isinstance(phase, Finish):
                self._add_finish(phase.body, names_read_later)

    def _names_after(self, position: int) -> set[str]:
        phases = self.plan.phases[position + 1 :]
        return {n for p in phases if isinstance(p, Sweep | Finish) for n in _names_in(p.body)}

    def _add_sweep(self, sweep: Sweep) -> None:
        """Add a loop over elements, and the reductions of the sweep.

        The loop also computes the operands of the reductions.
        """
        operand_names: dict[Ref, str] = {}  # by the target of the reduction

        def with_operands(program: Program, outer: Mapping[Expr, str]) -> Iterator[Stmt]:
            """Yield a program that computes operands in place of their reductions."""
            known = dict(outer)  # an arm's operands are unknown after the branch
            for stmt in program:
                if isinstance(stmt, If):
                    arms = [tuple(with_operands(arm, known)) for arm in (stmt.then, stmt.orelse)]
                    yield replace(stmt, then=arms[0], orelse=arms[1])
                elif not is_reduction(stmt.value):
                    yield stmt
                else:
                    operand = _operand(stmt.value)
                    if operand not in known:
                        known[operand] = self._operand_name(stmt.target.name)
                        yield replace(stmt, target=Ref(known[operand]), value=operand)
                    operand_names[stmt.target] = known[operand]

        self._add_draws(sweep)
        body = tuple(with_operands(sweep.body, {}))
        body = filter_assigns(body, lambda _: True)  # drops branches that have become empty
        stored = [stream.name for stream in sweep.streams if stream.stored]
        self._add_loop(Axes.TENSOR, body, [*stored, *dict.fromkeys(operand_names.values())])
        for stmt in sweep.reductions:
            self._add_reduction(stmt, operand_names[stmt.target], over_elements=True)

    def _add_draws(self, sweep: Sweep) -> None:
        """Add steps that draw the random numbers that a sweep is the first to read."""
        read = names_read(sweep.body)
        for name, call in self.draws.items():
            if name in read and name not in self.axes:
                self.axes[name] = Axes.TENSOR
                step = Step(
                    f"draw_{name}", Axes.TENSOR, self.sweep, writes=(name,), over_elements=True
                )
                self.steps.append(replace(step, draws=call))

    def _operand_name(self, reduced: str) -> str:
        """Return a free name for the operand of the reduction `reduced`."""
        base = reduced
        for suffix in ("_row_sum", "_col_sum", "_sum", "_row_max_abs", "_col_max_abs", "_max_abs"):
            base = base.removesuffix(suffix)
        names = [base, f"{base}_value"]
        if base in SHADOWABLE_FUNCTIONS:  # the loop may call the function
            names.remove(base)
        candidates = chain(names, numbered(names[-1]))
        return self._reserve(next(n for n in candidates if is_free(n, self.used_names)))

    def _reserve(self, name: str) -> str:
        """Return a name, and never give it to another value."""
        self.used_names.add(name)
        return name

    def _add_finish(self, body: Program, names_read_later: set[str]) -> None:
        """Add the steps of a `Finish`. Adjacent statements of the same axes share a loop."""
        groups = _group_by_axes(body, self.plan.kinds.__getitem__)
        for position, group in enumerate(groups):
            if group.reduces_over_parameters:
                self._add_wide_reduction(group.body[0])
            elif reduction := group.reduction:
                operand = self._named_operand(reduction)
                over_elements = self.axes[operand] is Axes.TENSOR
                self._add_reduction(reduction, operand, over_elements=over_elements)
            else:
                rest = (stmt for other in groups[position + 1 :] for stmt in other.body)
                needed = names_read_later | _names_in(rest) | set(self.streams) | self.scalar_states
                assigned = dict.fromkeys(a.target.name for a in assigns(group.body))
                self._add_loop(group.axes, group.body, [n for n in assigned if n in needed])

    def _add_wide_reduction(self, stmt: Stmt) -> None:
        """Add a loop that computes the parameter's number, and the reduction that overwrites it.

        The reduction may stand in a branch. So the loop also computes a second number: 1 if the
        parameter takes part in the reduction, else 0.
        """
        (wide,) = assigns((stmt,))
        assert isinstance(wide.value, Call)
        name = wide.target.name
        takes_part = self._reserve(free_name(f"{name}_takes_part", self.used_names))
        present = (replace(wide, value=wide.value.args[0]), Assign(Ref(takes_part), Const(1)))
        absent = (Assign(Ref(name), Const(0)), Assign(Ref(takes_part), Const(0)))
        body = present if stmt is wide else (*absent, *_with_body(stmt, present))
        self._add_loop(Axes.NONE, body, [name, takes_part])
        step = Step(name, Axes.NONE, self.sweep, reduction=wide.value.op)
        self.steps.append(replace(step, numbers_read=(name, takes_part), numbers_written=(name,)))

    def _named_operand(self, stmt: Assign) -> str:
        """Return the name of a reduction's operand. If it has none, add a loop that computes it.

        Elements that are computed from rows and columns need a sweep of their own.
        """
        operand = _operand(stmt.value)
        if isinstance(operand, Ref):
            return operand.name
        name = self._operand_name(stmt.target.name)
        axes = self.plan.kind(operand).axes
        if axes is Axes.TENSOR:
            self.sweep += 1
        self._add_loop(axes, (Assign(Ref(name), operand, stmt.quote),), [name])
        return name

    def _add_loop(self, axes: Axes, body: Program, stored: Sequence[str]) -> None:
        """Add a loop over values of these axes, which stores some of them for later steps."""
        if not body:
            return
        self.loop_counts[axes] += 1
        stores = (Assign(Ref("stored"), Ref(name)) for name in stored)
        read = read_before_assigned((*body, *stores))
        known = [n for n in read if n in self.axes or n in self.numbers]
        if axes is Axes.NONE:
            self.numbers += [n for n in stored if n not in self.numbers]
        else:
            self.axes |= {n: axes for n in stored if n not in self.axes}
        step = Step(
            f"{_LOOP_NAMES[axes]}{self.loop_counts[axes]}",
            axes,
            self.sweep,
            reads=tuple(n for n in known if n in self.axes),
            writes=() if axes is Axes.NONE else tuple(stored),
            numbers_read=tuple(n for n in known if n in self.numbers),
            numbers_written=tuple(stored) if axes is Axes.NONE else (),
            body=body,
            over_elements=axes is Axes.TENSOR,
        )
        self.steps.append(step)

    def _add_reduction(self, stmt: Assign, operand: str, *, over_elements: bool) -> None:
        """Add a reduction of the value `operand`."""
        assert isinstance(stmt.value, Call)
        axes, name = self.plan.kinds[stmt.target].axes, stmt.target.name
        word = "max_abs" if is_maximum(stmt.value) else "sum"
        step = Step(
            name, axes, self.sweep, reads=(operand,), reduction=word, over_elements=over_elements
        )
        if axes is Axes.NONE:
            self.numbers.append(name)
            self.steps.append(replace(step, numbers_written=(name,)))
        else:
            self.axes[name] = axes
            self.steps.append(replace(step, writes=(name,)))


def _operand(value: Expr) -> Expr:
    """Return a reduction's operand: the summands, or absolute values for a maximum."""
    assert isinstance(value, Call)
    (operand,) = value.args
    return Call("abs", (operand,)) if is_maximum(value) else operand


def _names_in(program: Iterable[Stmt]) -> set[str]:
    return {r.name for e in expressions(tuple(program)) for r in reads(e)}


def _with_body(stmt: Stmt, body: Program) -> Program:
    """Return a branch with other statements in place of its only assignment."""
    if isinstance(stmt, Assign):
        return body
    then, orelse = (
        tuple(s for inner in arm for s in _with_body(inner, body))
        for arm in (stmt.then, stmt.orelse)
    )
    return (replace(stmt, then=then, orelse=orelse),)


@dataclass(frozen=True)
class _AxesGroup:
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


def _group_by_axes(program: Program, kind: KindLookup) -> list[_AxesGroup]:
    """Return the groups of a program, in its order."""
    groups: list[_AxesGroup] = []
    for stmt in _split_by_axes(program, kind):
        axes = kind(next(assigns((stmt,))).target).axes
        if not groups or groups[-1].axes is not axes or _reduces((*groups[-1].body, stmt)):
            groups.append(_AxesGroup(axes, (stmt,)))
        else:
            groups[-1] = _AxesGroup(axes, (*groups[-1].body, stmt))
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
