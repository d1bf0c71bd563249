"""Print a rule with phases as a C++ struct: tables of values, steps and passes, and functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from optgen.ir.kinds import Axes
from optgen.ir.plan import Plan
from optgen.lowerings.fused_cpu.draw_function import DrawFunction
from optgen.lowerings.fused_cpu.expression_printer import variable
from optgen.lowerings.fused_cpu.kernel_limits import check_values
from optgen.lowerings.fused_cpu.line_layout import declarations, indented, indented_blocks
from optgen.lowerings.fused_cpu.loop_function import LoopFunction
from optgen.lowerings.fused_cpu.number_function import NumberFunction
from optgen.lowerings.fused_cpu.number_printer import number_printer
from optgen.lowerings.fused_cpu.phase_steps import PhaseSteps
from optgen.lowerings.fused_cpu.scalar_program import ScalarProgram
from optgen.lowerings.fused_cpu.step import Step
from optgen.lowerings.fused_cpu.step_loops import StepLoops
from optgen.lowerings.fused_cpu.step_tables import StepTables
from optgen.lowerings.fused_cpu.template_variants import switch_case
from optgen.passes.name_values import name_random

_StepFunction: TypeAlias = DrawFunction | NumberFunction | LoopFunction


@dataclass(frozen=True)
class PhasedRule:
    """Printer of the struct of one plan, or of one part of a plan between matrix ops."""

    name: str
    about: str
    plan: Plan
    streams: Mapping[str, Axes]  # of all plans, in the order of the table of addresses
    fresh_symbols: Sequence[str]
    is_last: bool = True  # whether no later part of the plan needs the same scalars

    def context(self) -> dict[str, Any]:
        """Return the template's variables.

        Raises:
            RuleError: The rule has too many values or steps.
        """
        steps, tables = self._phase_steps.steps, self._tables
        check_values(self.plan.algorithm, len(tables.stored_values), len(steps))
        blocks = {
            "scalars": (2, declarations("double", self._program.fields.values(), column=8)),
            "numbers": (
                2,
                declarations("double", map(variable, self._phase_steps.numbers), column=8),
            ),
            "names": (1, tables.values()),
            "axes": (1, tables.axes()),
            "steps": (1, tables.steps()),
            "passes": (1, tables.passes()),
            "applies": (1, self._applies()),
            "program": (2, self._program.lines()),
            **{name: (3, self._cases(runs_step)) for name, runs_step in _CASES.items()},
        }
        return {
            "name": self.name,
            "about": self.about,
            "reads_sizes": str(self._program.reads_sizes or bool(self.plan.facts)).lower(),
            "last": str(self.is_last).lower(),
            "has_axes": self.has_axes,
            "inputs": ", ".join(self._program.parameters()),
            "functions": ["\n".join(indented(each.definition())) for each in self._functions],
            **indented_blocks(blocks),
        }

    @property
    def has_axes(self) -> bool:
        """Tell whether a step reads or writes row or column values."""
        return self._tables.has_axes

    @cached_property
    def _program(self) -> ScalarProgram:
        """Printer of the scalar program."""
        return ScalarProgram(self.plan, self.fresh_symbols)

    @cached_property
    def _phase_steps(self) -> PhaseSteps:
        """Steps of the plan, and their values."""
        plan, draws = name_random(self.plan)
        return PhaseSteps(plan, dict(self.streams), draws)

    @cached_property
    def _tables(self) -> StepTables:
        """Printer of the tables."""
        scalar_states = [state.symbol for state in self.plan.algorithm.scalar_states()]
        return StepTables(self._phase_steps, self.streams, scalar_states)

    def _applies(self) -> list[str]:
        """Declare the test that decides whether the plan applies to a parameter."""
        tests = [f"{'' if holds else '!'}{fact}(sizes)" for fact, holds in self.plan.facts.items()]
        parameter = "const Sizes& sizes" if tests else "const Sizes&"
        return [f"static bool applies({parameter}) {{ return {' && '.join(tests) or 'true'}; }}"]

    @cached_property
    def _functions(self) -> list[_StepFunction]:
        """Functions of the draws, then those of the loops."""
        algorithm, program, phase_steps = self.plan.algorithm, self._program, self._phase_steps
        print_number = number_printer(algorithm, program, {})
        stored_values = self._tables.stored_values
        loops = StepLoops(program, phase_steps, self.streams, stored_values, self.has_axes)
        functions: list[_StepFunction] = [
            DrawFunction(step, print_number) for step in phase_steps.steps if step.draws
        ]
        for step in (step for step in phase_steps.steps if step.is_loop):
            if step.axes is Axes.NONE:
                functions.append(NumberFunction(step, algorithm, program))
            else:
                functions.append(LoopFunction(step, loops.printer(step)))
        return functions

    def _cases(self, runs_step: Callable[[Step], bool]) -> list[str]:
        """Return the cases of the switch that runs the steps for which `runs_step` is true."""
        functions = (each for each in self._functions if runs_step(each.step))
        return [
            line for each in functions for line in switch_case(each.step.index_name, each.call())
        ]


_CASES: dict[str, Callable[[Step], bool]] = {
    "number_cases": lambda step: step.axes is Axes.NONE,
    "draw_cases": lambda step: step.draws is not None,
    "loop_cases": lambda step: step.is_loop and step.axes is Axes.TENSOR,
    "axis_cases": lambda step: step.axes not in (Axes.NONE, Axes.TENSOR),
}
"""The switches of a rule, each with a test for the steps that it runs."""
