"""Print a finish between two sweeps: its small values, then the stores of its states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from optgen.ir.execution import is_wide
from optgen.ir.nodes import Assign, Call, Expr, Program, Ref, assigns, children, rebuild
from optgen.ir.plan import Plan
from optgen.lowerings.python.collectives import collective_points, completion_lines
from optgen.lowerings.python.expression_printer import PythonPrinter, statements
from optgen.lowerings.python.phase_syntax import PhaseSyntax
from optgen.lowerings.python.small_values import SmallValues
from optgen.passes.convert_branches import use_tensor_logic


@dataclass(frozen=True)
class FinishPrinter:
    """Printer of the finishes of a plan."""

    plan: Plan
    syntax: PhaseSyntax
    small_values: SmallValues

    def lines(self, body: Program) -> Iterator[str]:
        """Yield the lines of a finish."""
        param = self.plan.algorithm.param
        printer = PythonPrinter({param: self.syntax.param}, self.syntax.functions)
        stops = collective_points(body) if self.syntax.over_ranks else {}

        def line(stmt: Assign) -> str:
            text = f"{stmt.target.name} = {self._value(stmt, printer)}"
            reductions = stops.get(stmt.target, ())
            return "\n".join(
                [text, *completion_lines(reductions, self.small_values.kinds.__getitem__)]
            )

        yield from statements(body, printer, line)
        assigned = {a.target.name for a in assigns(body)}
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
        is_state = isinstance(stmt.value, Ref) and self._is_state(stmt.value)
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

    def _is_state(self, ref: Ref) -> bool:
        return self.plan.algorithm.state(ref.name) is not None
