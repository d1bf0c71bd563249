"""Print the phases of a rule with reductions as Python, for one tensor or for lists of tensors.

A large tensor is swept in blocks. Names of blocks end in `_block`. The small values (numbers, rows
and columns on the device) of a list of tensors are stacked along a new first axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from optgen.ir.generated_names import plural
from optgen.ir.nodes import Call, names_read, refs
from optgen.ir.plan import Finish, MatrixCall, Plan, Sweep
from optgen.lowerings.python.collectives import completion_lines
from optgen.lowerings.python.finish_printer import FinishPrinter
from optgen.lowerings.python.function import Body, indented
from optgen.lowerings.python.matrix_calls import matrix_call_lines
from optgen.lowerings.python.phase_syntax import PhaseSyntax
from optgen.lowerings.python.random_calls import defaults_before_draws, numbers_in_draws
from optgen.lowerings.python.small_values import SmallValues
from optgen.lowerings.python.sweep_printer import SweepPrinter
from optgen.lowerings.python.widened_tensors import shares_widened_tensors, widened_loop_header
from optgen.passes.name_values import name_random, with_random_streams
from optgen.passes.rematerialize_if_blocked import reads_blocked, rematerialize_if_blocked
from optgen.passes.sweep_algebra import coefficients_to_factors


def phase_body(plan: Plan, syntax: PhaseSyntax) -> Body:
    """Return the lines of all phases, for a bucket whose tensors share one shape."""
    plan = plan if plan.matrix_calls or syntax.over_ranks else rematerialize_if_blocked(plan)
    plan, draws = name_random(plan)
    plan = with_random_streams(plan, draws)
    if shares_widened_tensors(plan) and not syntax.in_lists:
        syntax = replace(syntax, whole_tensor="{0}")
    plan_with_factors = coefficients_to_factors(plan)
    small_values = SmallValues(plan_with_factors, plan.kinds, syntax)
    tensor_names = _tensor_names(plan)
    sweep_printer = SweepPrinter(plan_with_factors, syntax, small_values, tensor_names)
    printer = _PhasePrinter(plan_with_factors, syntax, small_values, sweep_printer, dict(draws))
    lines = list(printer.lines())
    if shares_widened_tensors(plan):
        lines = indented(lines, widened_loop_header(plan, syntax.in_lists))
    lists = ", ".join(map(plural, tensor_names))
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


@dataclass
class _PhasePrinter:
    """Printer of a plan's phases, one after another."""

    plan: Plan
    syntax: PhaseSyntax
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
        for phase in self.plan.phases:
            match phase:
                case Sweep():
                    yield from self._sweep(phase)
                case Finish(body):
                    self.reads |= names_read(body)
                    yield from finishes.lines(body)
                case MatrixCall():
                    self.reads |= {ref.name for arg in phase.args for ref in refs(arg)}
                    sample_param = self.small_values.sample_param()
                    yield from matrix_call_lines(self.plan, phase, self.syntax, sample_param)

    def _sweep(self, sweep: Sweep) -> Iterator[str]:
        """Yield the lines of a sweep, between its draws and the completion of its reductions."""
        yield from self._draw(sweep)
        yield from self.sweep_printer.lines(sweep)
        if self.syntax.over_ranks:
            yield from completion_lines(sweep.reductions, self.small_values.kinds.__getitem__)

    def _draw(self, sweep: Sweep) -> list[str]:
        """Return the lines that draw the random numbers that a sweep is the first to read."""
        read = names_read(sweep.body) & self.undrawn_calls.keys()
        first_read = {name: self.undrawn_calls.pop(name) for name in sorted(read)}
        self.reads |= numbers_in_draws(first_read)
        return self.syntax.print_draws(first_read)
