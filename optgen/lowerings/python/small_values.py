"""Print the small values of phases: the numbers, rows and columns that only the device knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optgen.ir.algorithm import State
from optgen.ir.execution import widens_in_python
from optgen.ir.kinds import Axes, Kind, Stage, kind_of
from optgen.ir.nodes import Expr, Ref, always_assigned, assigns, expressions
from optgen.ir.plan import Finish, Plan, Sweep, reads
from optgen.lowerings.python.function import guarded_lines
from optgen.lowerings.python.phase_syntax import PhaseSyntax, filled_in

_ZEROS = {Axes.NONE: "zero_sum", Axes.ROW: "zero_row_sum", Axes.COLUMN: "zero_col_sum"}


@dataclass(frozen=True)
class SmallValues:
    """Small values of a plan. `kinds` are the kinds before `coefficients_to_factors`."""

    plan: Plan
    kinds: Mapping[Ref, Kind]
    syntax: PhaseSyntax

    def is_device_value(self, expr: Expr) -> bool:
        """Tell whether a value is known only on the device."""
        return kind_of(expr, self.kinds.__getitem__).stage is Stage.DEVICE

    def is_small(self, ref: Ref) -> bool:
        """Tell whether a name is a number, a row or a column on the device."""
        kind = self.kinds[ref]
        return kind.stage is Stage.DEVICE and kind.axes is not Axes.TENSOR

    def of_sweep(self, sweep: Sweep) -> list[Ref]:
        """Return the small values that a sweep reads or reduces to, in order."""
        read = (ref for expr in expressions(sweep.body) for ref in reads(expr))
        refs = dict.fromkeys((*(stmt.target for stmt in sweep.reductions), *read))
        return [ref for ref in refs if self.is_small(ref)]

    def is_sum_of_tensor(self, ref: Ref) -> bool:
        """Tell whether the result of a reduction is one number."""
        return self.kinds[ref].axes is Axes.NONE

    def sometimes_unassigned(self) -> list[str]:
        """Return the small values that start as None, because some path leaves them unassigned.

        These include the states that exist only under a condition.
        """
        finishes = [phase.body for phase in self.plan.phases if isinstance(phase, Finish)]
        names = {a.target.name: None for body in finishes for a in assigns(body)}
        always_assigned_names = {name for body in finishes for name in always_assigned(body)}
        read = {ref.name for sweep in self.plan.sweeps for ref in self.of_sweep(sweep)}
        states = {state.symbol for state in self.plan.algorithm.states}
        optional = [s.symbol for s in self.plan.algorithm.factor_states() if s.when]
        sometimes = [name for name in names if name not in always_assigned_names | states]
        return [name for name in (*optional, *sometimes) if name in read]

    def argument(self, name: str) -> str:
        """Return the text of a small value as an argument of the loop over blocks."""
        text = filled_in(self.syntax.small_value, name)
        may_be_none = self.syntax.in_lists and name in self.sometimes_unassigned()
        return f"[] if {name} is None else {text}" if may_be_none else text

    def sample_param(self) -> str:
        """Return the text of a parameter of the bucket; all have its shape, dtype and device."""
        param = filled_in(self.syntax.whole_tensor, self.plan.algorithm.param)
        return f"{param}[0]" if self.syntax.in_lists else param

    def number(self, value: str) -> str:
        """Return the text that puts a number that is known before the step on the device."""
        return f"number({self.sample_param()}, {value}{self.syntax.count_argument})"

    def zero(self, reduced: Ref) -> str:
        """Return the text of the initial value of a sum."""
        return (
            f"{_ZEROS[self.kinds[reduced].axes]}({self.sample_param()}{self.syntax.count_argument})"
        )

    def read_lines(self, state: State) -> list[str]:
        """Return the lines that read a row or column state, or a scalar state on the device."""
        syntax = self.syntax
        text = syntax.read_wider if widens_in_python(self.plan.algorithm) else syntax.read
        text = syntax.read_number if state.on_device else text
        return guarded_lines(state, f"{state.symbol} = {filled_in(text, state.symbol)}")

    def write_lines(self, state: State) -> list[str]:
        """Return the lines that store a row or column state, or a scalar state on the device."""
        text = self.syntax.write_number if state.on_device else self.syntax.write
        return guarded_lines(state, filled_in(text, state.symbol))
