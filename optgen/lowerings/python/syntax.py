"""Define the words of Python lowerings: for one tensor, for lists of tensors, or for shards.

Small values are the numbers, rows and columns that only the device knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from optgen.ir.algorithm import State
from optgen.ir.kinds import Axes, Kind, Stage, kind_of
from optgen.ir.nodes import Call, Expr, Ref, always_assigned, assigns, expressions
from optgen.ir.plan import Finish, Plan, Sweep, reads
from optgen.ir.reserved_in_python import plural
from optgen.lowerings.python.expression_printer import (
    PythonPrinter,
    foreach_lines,
    forloop_lines,
)
from optgen.lowerings.python.functions import guarded_lines
from optgen.passes.extract_subexpressions import Draws
from optgen.passes.recognize_rules import widens_in_python

_PRINTER = PythonPrinter({}, {})


@dataclass(frozen=True)
class Syntax:
    """Syntax that differs between the Python lowerings, and for rules on whole matrices.

    In the texts from `whole_tensor` to `write_number`, `{0}` stands for the name of a tensor or of
    a small value, and `{1}` for the name of its list.
    """

    loop: str  # header of the loop over tensors or sublists
    blocks_function: str  # function that yields a sweep's blocks
    set_blocked: str  # line that finds out whether there are blocks
    whole_tensor: str  # a tensor inside `loop`
    small_value: str  # a small value inside `loop`
    read: str  # reads a row or column state
    read_wider: str  # reads a row or column state in a wider dtype
    write: str  # stores a row or column state; of a rule on whole matrices, any tensor
    read_number: str  # reads a scalar state on the device
    write_number: str  # stores a scalar state on the device
    count_argument: str  # last argument of functions that must know the number of tensors
    functions: dict[str, str]  # the runtime's functions for ops of a finish
    print_instructions: Callable[..., list[str]]  # takes instructions, and the quotes above them
    draw: str  # draws random numbers; `{2}` stands for the function, `{3}` for its arguments
    in_lists: bool
    param: str = "params[0]"  # the parameter whose properties are read
    over_ranks: bool = False  # whether ranks complete each reduction together

    def draw_lines(self, draws: Draws) -> list[str]:
        """Return the lines that draw random numbers."""
        return [
            self.draw.format(name, plural(name), call.op, ", ".join(map(_PRINTER.text, call.args)))
            for name, call in draws.items()
        ]

    def stream(self, name: str) -> Expr:
        """Return the expression that reads the state of this name, a stream of random numbers."""
        if self.in_lists:
            return Call("numbers_of", (Ref(plural(name)),))
        return Ref(f"{plural(name)}[index].item()")

    def stream_key(self, name: str) -> Expr:
        """Return the expression of the key that a draw takes for the state of this name."""
        if self.in_lists:
            return Call("keys_of", (Ref(plural(name)),))
        return Call("key_of", (Ref(f"{plural(name)}[index]"),))

    def of_lists(self, first: str) -> Syntax:
        """Return the syntax for lists the first of which has this name instead of `params`."""
        values: dict[str, Any] = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        for key, text in values.items():
            values[key] = text.replace("params", first) if isinstance(text, str) else text
        return Syntax(**values)

    def listed(self, name: str) -> str:
        """Return the name of a tensor, or of the list of tensors."""
        return plural(name) if self.in_lists else name


def filled_in(text: str, name: str) -> str:
    """Return one of the texts of a syntax with a name in it."""
    return text.format(name, plural(name))


ONE_TENSOR = Syntax(
    loop="for index in range(len(params)):",
    blocks_function="blocks",
    set_blocked="blocked = needs_blocks(params[index])",
    whole_tensor="{1}[index]",
    small_value="{0}",
    read="{1}[index]",
    read_wider="wider({1}[index], like=params[index])",
    write="{1}[index].copy_({0})",
    read_number="number(params[index], {1}[index])",
    write_number="{1}[index].copy_({0}.view(()))",
    count_argument="",
    functions={"sum": "total"},
    print_instructions=forloop_lines,
    draw="({0},) = {2}([params[index]], {3})",
    in_lists=False,
)
TENSOR_LISTS = Syntax(
    loop="for sublist in sublists({lists}):",
    blocks_function="list_blocks",
    set_blocked="blocked = needs_blocks(params[0])",
    whole_tensor="{1}",
    small_value="{0}.unbind()",
    read="torch.stack({1})",
    read_wider="wider(torch.stack({1}), like=params[0])",
    write="write({1}, {0})",
    read_number="stacked_numbers(params[0], {1})",
    write_number="write({1}, {0}.flatten())",
    count_argument=", len(params)",
    functions={"sum": "totals", "max_abs": "stacked_max_abs"},
    print_instructions=foreach_lines,
    draw="{1} = {2}(params, {3})",
    in_lists=True,
)
ONE_WHOLE_TENSOR = replace(ONE_TENSOR, param="params[index]")
WHOLE_LISTS = replace(
    TENSOR_LISTS,
    loop="for sublist in same_shape_sublists({lists}):",
    write="write_back({1}, {0})",
    draw="{0} = TensorList({2}(params, {3}))",
)
SHARDED = replace(
    TENSOR_LISTS,
    loop="",
    blocks_function="list_chunks",
    set_blocked="",
    draw="{1} = {2}(params, {3}, collectives)",
    param="collectives.whole",
    over_ranks=True,
)


_ZEROS = {Axes.NONE: "zero_sum", Axes.ROW: "zero_row_sum", Axes.COLUMN: "zero_col_sum"}


@dataclass(frozen=True)
class SmallValues:
    """Small values of a plan. `kinds` are the kinds before `coefficients_to_factors`."""

    plan: Plan
    kinds: Mapping[Ref, Kind]
    syntax: Syntax

    def is_device_value(self, expr: Expr) -> bool:
        """Tell whether a value is known only on the device."""
        return kind_of(expr, self.kinds.__getitem__).stage is Stage.DEVICE

    def is_small(self, ref: Ref) -> bool:
        """Tell whether a name is a number, a row or a column on the device."""
        return self.kinds[ref].is_small

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
