"""Print the phases of a rule with reductions as Python, for one tensor or for lists of tensors.

A large tensor is swept in blocks. Names of blocks end in `_block`. The small values (numbers, rows
and columns on the device) of a list of tensors are stacked along a new first axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from optgen.ir.execution import is_wide
from optgen.ir.kinds import Axes, KindLookup, kind_of
from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    Linear,
    Program,
    Ref,
    Term,
    children,
    expressions,
    names_assigned,
    names_read,
    only_factor,
    rebuild,
    refs,
)
from optgen.ir.plan import Finish, MatrixCall, Plan, Sweep, is_maximum, is_reduction, reads
from optgen.ir.reserved_in_python import plural
from optgen.lowerings.python.expression_printer import PythonPrinter, shown_below, statements
from optgen.lowerings.python.functions import (
    Body,
    defaults_before_draws,
    indented,
    numbers_in_draws,
)
from optgen.lowerings.python.literals import Quote, comment, not_shown, shown_after
from optgen.lowerings.python.sweep_printer import (
    SweepPrinter,
    lines_sharing_wide_copies,
    shares_wide_copies,
)
from optgen.lowerings.python.syntax import SmallValues, Syntax
from optgen.passes.convert_branches import use_tensor_logic
from optgen.passes.extract_subexpressions import (
    extract_draws,
    with_listed_streams,
    with_random_streams,
)
from optgen.passes.rematerialize_if_blocked import reads_blocked, rematerialize_if_blocked
from optgen.passes.sweep_algebra import coefficients_to_factors


def phase_body(plan: Plan, syntax: Syntax) -> Body:
    """Return the lines of all phases, for a bucket whose tensors share one shape."""
    syntax = syntax.of_lists(plural(plan.algorithm.param))
    if plan.matrix_calls or not syntax.over_ranks:
        plan = rematerialize_if_blocked(plan)
    plan = _without_copied_operands(plan)
    plan, draws = extract_draws(with_listed_streams(plan, syntax.stream, syntax.stream_key))
    plan = with_random_streams(plan, draws)
    if shares_wide_copies(plan) and not syntax.in_lists:
        syntax = replace(syntax, whole_tensor="{0}")
    plan_with_factors = coefficients_to_factors(plan)
    small_values = SmallValues(plan_with_factors, plan.kinds, syntax)
    tensor_names = _tensor_names(plan)
    sweep_printer = SweepPrinter(plan_with_factors, syntax, small_values, tensor_names)
    printer = _PhasePrinter(plan_with_factors, syntax, small_values, sweep_printer, dict(draws))
    lines = list(printer.lines())
    if shares_wide_copies(plan):
        lines = lines_sharing_wide_copies(plan, syntax.in_lists, lines)
    stream_names = (state.symbol for state in plan.algorithm.stream_states())
    lists = ", ".join(map(plural, (*tensor_names, *stream_names)))
    if syntax.over_ranks:
        lines = [*([f"sublist = {lists}"] if sweep_printer.rereads_lists else []), *lines]
    else:
        opening = [f"{lists} = sublist"] if syntax.in_lists else []
        lines = indented([*opening, *lines], syntax.loop.format(lists=lists))
    reads = frozenset(printer.reads | sweep_printer.reads)
    return Body(lines, reads, defaults_before_draws(plan, draws))


def _tensor_names(plan: Plan) -> list[str]:
    """Return the names of a parameter's tensors, in the order of the lists in a sublist."""
    states = (s.symbol for s in plan.algorithm.device_states())
    return [plan.algorithm.param, plan.algorithm.grad, *states]


def _without_copied_operands(plan: Plan) -> Plan:
    """Return a plan whose matrix ops take a tensor itself, not a second name for it.

    The sweep before the op gives its operand a name, because kernels store the operand. Here the
    name would be one more line.
    """
    phases = list(plan.phases)
    for position, call in enumerate(phases):
        if not isinstance(call, MatrixCall):
            continue
        operand, *rest = call.args
        sweep = phases[position - 1]
        if not isinstance(sweep, Sweep) or not sweep.body:
            continue
        *body, last = sweep.body
        if not isinstance(last, Assign) or last.target != operand:
            continue
        source = only_factor(last.value)
        num_reads = sum(ref == operand for value in plan.values() for ref in reads(value))
        if isinstance(source, Ref) and num_reads == 1:
            streams = tuple(stream for stream in sweep.streams if stream.name != operand.name)
            phases[position - 1] = replace(sweep, body=tuple(body), streams=streams)
            phases[position] = replace(call, args=(source, *rest))
    return replace(plan, phases=tuple(phases))


@dataclass
class _PhasePrinter:
    """Printer of a plan's phases, one after another."""

    plan: Plan
    syntax: Syntax
    small_values: SmallValues
    sweep_printer: SweepPrinter
    undrawn_calls: dict[str, Call]  # draws of random numbers that are not printed yet
    reads: set[str] = field(default_factory=set)  # numbers that lines outside of sweeps read

    def lines(self) -> Iterator[str]:
        """Yield the lines inside the loop over tensors or sublists."""
        if reads_blocked(self.plan):
            yield self.syntax.set_blocked
        yield from (f"{name} = None" for name in self.small_values.sometimes_unassigned())
        for state in self.plan.algorithm.finish_states():
            yield from self.small_values.read_lines(state)
        finishes = FinishPrinter(self.plan, self.syntax, self.small_values)
        shown: Quote = ()  # between matrix ops no loop is printed, so comments hold across phases
        for phase in self.plan.phases:
            match phase:
                case Sweep(_, body):
                    yield from self._draw(phase)
                    yield from self.sweep_printer.lines(phase, shown)
                    shown = shown_below(body, shown) if self.plan.matrix_calls else ()
                    if self.syntax.over_ranks:
                        kinds = self.small_values.kinds.__getitem__
                        yield from completion_lines(phase.reductions, kinds)
                case Finish(body):
                    self.reads |= names_read(body)
                    yield from finishes.lines(body, shown)
                    shown = shown_below(body, shown) if self.plan.matrix_calls else ()
                case MatrixCall():
                    self.reads |= {ref.name for arg in phase.args for ref in refs(arg)}
                    yield from map(comment, not_shown(phase.quote, shown))
                    shown = shown_after(phase.quote, shown)
                    sample_param = self.small_values.sample_param()
                    yield from matrix_call_lines(self.plan, phase, self.syntax, sample_param)

    def _draw(self, sweep: Sweep) -> list[str]:
        """Return the lines that draw the random numbers that a sweep is the first to read."""
        read = names_read(sweep.body) & self.undrawn_calls.keys()
        first_read = {name: self.undrawn_calls.pop(name) for name in sorted(read)}
        self.reads |= numbers_in_draws(first_read)
        return self.syntax.draw_lines(first_read)


@dataclass(frozen=True)
class FinishPrinter:
    """Printer of the finishes of a plan."""

    plan: Plan
    syntax: Syntax
    small_values: SmallValues

    def lines(self, body: Program, shown: Quote) -> Iterator[str]:
        """Yield the lines of a finish. `shown` are the lines of the rule that stand above them."""
        param = self.plan.algorithm.param
        printer = PythonPrinter({param: self.syntax.param}, self.syntax.functions)
        stops = collective_points(body) if self.syntax.over_ranks else {}

        def lines(stmt: Assign) -> list[str]:
            text = f"{stmt.target.name} = {self._value(stmt, printer)}"
            reductions = stops.get(stmt.target, ())
            return [text, *completion_lines(reductions, self.small_values.kinds.__getitem__)]

        yield from statements(body, printer, lines, shown=shown)
        assigned = names_assigned(body)
        for state in self.plan.algorithm.states:
            if state.symbol in assigned:
                yield from self.small_values.write_lines(state)

    def _value(self, stmt: Assign, printer: PythonPrinter) -> str:
        """Return the text of the value that a statement assigns."""
        small_values = self.small_values
        if is_wide(stmt.value):
            return self._wide_reduction(stmt.value, printer)
        expr = use_tensor_logic(stmt.value, small_values.is_device_value)
        text = printer.text(self._with_equal_sides(expr))
        if small_values.is_small(stmt.target) and not small_values.is_device_value(stmt.value):
            text = small_values.number(text)
        # The state is overwritten later. In lists, a stacked state is a copy already.
        is_state = isinstance(stmt.value, Ref) and self.plan.algorithm.state(stmt.value.name)
        return f"{text}.clone()" if is_state and not self.syntax.in_lists else text

    def _wide_reduction(self, reduction: Call, printer: PythonPrinter) -> str:
        """Return the text that requests a reduction over several parameters."""
        (operand,) = reduction.args
        text = printer.text(operand)
        if not self.small_values.is_device_value(operand):
            text = self.small_values.number(text)
        return f"yield {reduction.op}({text})"

    def _with_equal_sides(self, value: Expr) -> Expr:
        """Return a value in which a `where` has tensors on both sides if it has one on a side."""
        is_device_value = self.small_values.is_device_value
        new_value = rebuild(value, self._with_equal_sides)
        match value:
            case Call("where", (condition, *arms)) if not is_device_value(condition) and any(
                map(is_device_value, arms)
            ):
                _, *new_arms = children(new_value)
                tensors = (
                    new if is_device_value(old) else self._number(new)
                    for old, new in zip(arms, new_arms, strict=True)
                )
                return Call("where", (condition, *tensors))
        return new_value

    def _number(self, value: Expr) -> Call:
        """Return the call that puts a number on the device."""
        count = (
            [Ref(self.syntax.count_argument.removeprefix(", "))]
            if self.syntax.count_argument
            else []
        )
        return Call("number", (Ref(self.small_values.sample_param()), value, *count))


_PRINTER = PythonPrinter({}, {})


def matrix_call(call: Call) -> str:
    """Return the text of a matrix op on one tensor. The runtime's functions take lists."""
    first, *rest = (_PRINTER.text(arg) for arg in call.args)
    return f"{call.op}({', '.join([f'[{first}]', *rest])})[0]"


def matrix_call_lines(
    plan: Plan, call: MatrixCall, syntax: Syntax, sample_param: str
) -> Iterator[str]:
    """Yield the lines that call a matrix op between two sweeps.

    `sample_param` is the text of a parameter, whose dtype the result gets.
    """
    target, (first, *rest) = call.target.name, (_PRINTER.text(arg) for arg in call.args)
    if syntax.over_ranks:
        yield f"whole = yield collectives.gather({plural(first)})"
        result = f"{call.op}({', '.join(['whole', *rest])})"
        yield f"{plural(target)} = yield collectives.scatter({result})"
    elif syntax.in_lists:
        yield f"{plural(target)} = {call.op}({', '.join([plural(first), *rest])})"
    else:
        yield f"{target} = {matrix_call(Call(call.op, call.args))}"
    if not _is_only_added(plan, call.target):  # some ops need equal dtypes
        cast = f"{target}.to({sample_param}.dtype)"
        text = f"[{cast} for {target} in {plural(target)}]" if syntax.in_lists else cast
        yield f"{syntax.listed(target)} = {text}"


def _is_only_added(plan: Plan, target: Ref) -> bool:
    """Tell whether a tensor is only scaled and added to other tensors."""
    for value in (e for sweep in plan.sweeps for e in expressions(sweep.body)):
        terms = value.terms if isinstance(value, Linear) else ()
        times_added = sum(term == Term(term.coefficient, (target,)) for term in terms)
        is_first = bool(terms) and terms[0].factors == (target,)
        if is_first or sum(ref == target for ref in reads(value)) > times_added:
            return False
    return True


_AXIS_NAMES = {
    Axes.MATRIX: "batch",
    Axes.ROW & ~Axes.MATRIX: "rows",
    Axes.COLUMN & ~Axes.MATRIX: "cols",
}
"""Name of each axis in the printed requests: an argument of the methods of
`optgen.runtime.sharded.driver.Collectives`.
"""
_REDUCED_AXES = {
    f"{line}_{word}": Axes.TENSOR & ~axes
    for line, axes in (("row", Axes.ROW), ("col", Axes.COLUMN))
    for word in ("sum", "max_abs")
}
"""Axes that each reduction to rows or columns reduces. Other reductions reduce all axes."""


def completion_lines(reductions: Iterable[Assign], kinds: KindLookup) -> list[str]:
    """Return the line that requests that ranks complete reductions together, if any needs it."""
    requests = _requests(reductions, kinds)
    return [f"yield [{', '.join(requests)}]"] if requests else []


def _requests(reductions: Iterable[Assign], kinds: KindLookup) -> list[str]:
    """Return a request for each reduction over an axis that may be sharded.

    The request adds the partial sums of all ranks, or takes their maximum, over the reduced axes.
    """
    requests = []
    for reduction in reductions:
        call = reduction.value
        assert isinstance(call, Call)
        axes = kind_of(call.args[0], kinds).axes & _REDUCED_AXES.get(call.op, Axes.TENSOR)
        if axes:
            names = [f'"{name}"' for bit, name in _AXIS_NAMES.items() if axes & bit]
            axis_arguments = names if axes != Axes.TENSOR else []
            arguments = ", ".join([reduction.target.name, *axis_arguments])
            method = "max" if is_maximum(call) else "sum"
            requests.append(f"collectives.{method}({arguments})")
    return requests


def collective_points(program: Program) -> dict[Ref, list[Assign]]:
    """Map each stop of a finish to the reductions that the ranks complete there.

    A stop is named by the target of the statement before it. Adjacent reductions share a stop,
    unless one reads another.
    """
    points: dict[Ref, list[Assign]] = {}
    adjacent: list[Assign] = []
    for stmt in (*program, None):  # None ends the last run of adjacent reductions
        reduces = isinstance(stmt, Assign) and is_reduction(stmt.value)
        read = set(refs(stmt.value)) if isinstance(stmt, Assign) else set()
        if adjacent and (not reduces or any(earlier.target in read for earlier in adjacent)):
            points[adjacent[-1].target] = adjacent
            adjacent = []
        if isinstance(stmt, Assign):
            adjacent += [stmt] if reduces else []
        elif stmt is not None:
            points |= collective_points(stmt.then) | collective_points(stmt.orelse)
    return points
