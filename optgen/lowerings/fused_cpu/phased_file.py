"""Print the C++ file of a rule with phases.

Matrix ops cut a plan into parts. Each part of each plan becomes a struct: tables of its values,
steps and passes, and functions that run the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from optgen.ir.algorithm import Algorithm
from optgen.ir.kinds import Axes
from optgen.ir.nodes import RuleError
from optgen.ir.plan import HostCall, MatrixCall, Phase, Plan
from optgen.lowerings.fused_cpu.cpp_text import (
    WIDTH,
    constant,
    declarations,
    indented,
    indented_blocks,
    variable,
    wrapped_list,
)
from optgen.lowerings.fused_cpu.kernel_steps import PhaseSteps, Step
from optgen.lowerings.fused_cpu.loop_printer import LoopPrinter
from optgen.lowerings.fused_cpu.pass_schedule import Pass, tiling_strategies
from optgen.lowerings.fused_cpu.scalar_program import NumberFunction, ScalarProgram
from optgen.lowerings.fused_cpu.step_functions import DrawFunction, StepFunctions
from optgen.lowerings.lowering import Context
from optgen.passes.dead_code import used_scalars
from optgen.passes.extract_subexpressions import extract_draws

_MAX_VALUES = 64  # the number of bits of a set: include/rule_tables.h
_END_OF_CALL = ">(*table, *threads);"


def phased_context(
    all_plans: Sequence[Plan], streams: Mapping[str, Axes], fresh_symbols: Sequence[str]
) -> Context:
    """Return the template's variables: structs and entry points."""
    rules: list[list[_PhasedRule]] = []  # for each part, the rules of all plans
    for plan in all_plans:
        calls = plan.matrix_calls
        for part_index, part in enumerate(_parts(plan)):
            if part_index == len(rules):
                rules.append([])
            if not part.phases:  # no phase lies between two matrix ops
                continue
            name, about = _name(plan, calls, part_index), _about(plan, calls, part_index)
            is_last = part_index == len(calls)
            axes = dict.fromkeys(streams, Axes.TENSOR) if plan.facts.get("one_by_one") else streams
            rules[part_index].append(_PhasedRule(name, about, part, axes, fresh_symbols, is_last))
    return {
        "form": "fused_cpu_phases.cpp.jinja",
        "header": "phased_kernel.h",
        "rules": [rule.context() for part_rules in rules for rule in part_rules],
        "parts": {
            "" if part_index == 0 else f"_{part_index + 1}": "\n".join(
                indented(
                    wrapped_list(
                        "optgen::step<", _qualified_names(part_rules), _END_OF_CALL, column=4
                    )
                )
            )
            for part_index, part_rules in enumerate(rules)
            if part_rules
        },
        "by_matrix": ", and works on matrices" if _needs_row_major_order(all_plans, rules) else "",
    }


def _needs_row_major_order(
    all_plans: Sequence[Plan], rules: Sequence[Sequence[_PhasedRule]]
) -> bool:
    """Tell whether elements must lie in row-major order: for rows, or for random numbers."""
    has_axes = any(rule.has_axes for part_rules in rules for rule in part_rules)
    return has_axes or all_plans[0].algorithm.has_random_ops


def _qualified_names(rules: Sequence[_PhasedRule]) -> list[str]:
    return [f"optgen::{rule.name}" for rule in rules]


def _parts(plan: Plan) -> Iterator[Plan]:
    """Yield the parts of a plan between its matrix ops, each with the scalars it reads."""
    phases: list[Phase] = []
    for phase in (*plan.phases, None):
        if phase is not None and not isinstance(phase, MatrixCall):
            phases.append(phase)
            continue
        bodies = [p.body for p in phases if not isinstance(p, HostCall)]
        scalars = used_scalars(plan.scalars, bodies, plan.algorithm)
        yield replace(plan, scalars=scalars, phases=tuple(phases))
        phases = []


def _name(plan: Plan, calls: Sequence[MatrixCall], part: int) -> str:
    """Return the name of a part's struct, such as MuonBefore or AdafactorNotFactoredRule.

    `part` is the index of the part in its plan.
    """
    facts = (f"{'' if holds else 'not_'}{fact}" for fact, holds in plan.facts.items())
    words = (word.capitalize() for fact in facts for word in fact.split("_"))
    suffix = "Rule" if not calls else f"Part{part + 1}"
    if len(calls) == 1:
        suffix = ("Before", "After")[part]
    return "".join([plan.algorithm.name, *words, suffix])


def _about(plan: Plan, calls: Sequence[MatrixCall], part: int) -> str:
    """Return the comment about a part of a plan: for which parameters, between which matrix ops."""
    facts = (f"{'' if holds else 'not '}{fact}" for fact, holds in plan.facts.items())
    text = " and ".join(facts).replace("_", " ")
    scope = f"Plan for parameters that are {text}" if plan.facts else "Plan for all parameters"
    before = [f"after {call.op}" for call in calls[part - 1 : part]] if part else []
    after = [f"until {call.op}" for call in calls[part : part + 1]]
    return ", ".join([scope, *before, *after])


@dataclass(frozen=True)
class _PhasedRule:
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
        _check_values(self.plan.algorithm, len(tables.stored_values), len(steps))
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
            "functions": ["\n".join(indented(each.definition())) for _, each in self._functions],
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
        plan, draws = extract_draws(self.plan)
        return PhaseSteps(plan, dict(self.streams), draws)

    @cached_property
    def _tables(self) -> _StepTables:
        """Printer of the tables."""
        scalar_states = [state.symbol for state in self.plan.algorithm.scalar_states()]
        return _StepTables(self._phase_steps, self.streams, scalar_states)

    def _applies(self) -> list[str]:
        """Declare the test that decides whether the plan applies to a parameter."""
        tests = [f"{'' if holds else '!'}{fact}(sizes)" for fact, holds in self.plan.facts.items()]
        parameter = "const Sizes& sizes" if tests else "const Sizes&"
        return [f"static bool applies({parameter}) {{ return {' && '.join(tests) or 'true'}; }}"]

    @cached_property
    def _functions(self) -> list[tuple[Step, DrawFunction | NumberFunction | LoopPrinter]]:
        """The draws with their functions, then the loops with theirs."""
        stored_values = self._tables.stored_values
        return StepFunctions(
            self.plan, self._program, self._phase_steps, self.streams, stored_values, self.has_axes
        ).all()

    def _cases(self, runs_step: Callable[[Step], bool]) -> list[str]:
        """Return the cases of the switch that runs the steps for which `runs_step` is true."""
        return [
            line
            for step, function in self._functions
            if runs_step(step)
            for line in _switch_case(step.index_name, function.call())
        ]


_CASES: dict[str, Callable[[Step], bool]] = {
    "number_cases": lambda step: step.axes is Axes.NONE,
    "draw_cases": lambda step: step.draws is not None,
    "loop_cases": lambda step: step.is_loop and step.axes is Axes.TENSOR,
    "axis_cases": lambda step: step.axes not in (Axes.NONE, Axes.TENSOR),
}
"""The switches of a rule, each with a test for the steps that it runs."""


def _switch_case(name: str, lines: list[str]) -> list[str]:
    """Return a case of a switch, on one line if it fits at the column of cases."""
    head = f"case {name}:"
    if len(lines) == 1 and 12 + len(f"{head} {lines[0]}") <= WIDTH:
        return [f"{head} {lines[0]}"]
    is_return = lines[0].startswith("return")
    return [head, *indented(lines)] if is_return else [f"{head} {{", *indented(lines), "}"]


@dataclass(frozen=True)
class _StepTables:
    """Printer of the tables of steps, and of what the steps read and write."""

    phase_steps: PhaseSteps
    streams: Mapping[str, Axes]  # of all plans, in the table's order
    scalar_states: Sequence[str]  # symbols

    @cached_property
    def stored_values(self) -> dict[str, Axes]:
        """The axes of each stored value. A value that a loop only sums is not stored."""
        read = {n for s in self.phase_steps.steps if not s.is_total_sum for n in s.reads}
        only_summed = {n for s in self.phase_steps.steps if s.is_total_sum for n in s.reads} - read
        return {n: axes for n, axes in self.phase_steps.axes.items() if n not in only_summed}

    def values(self) -> list[str]:
        """Declare the indices of the values that are not streams, after those of the streams."""
        others = [constant(n) for n in self.stored_values if n not in self.streams]
        first, *rest = [*others, "VALUES"]
        return wrapped_list("enum { ", [f"{first} = STREAMS", *rest], " };", column=4)

    def axes(self) -> list[str]:
        """Declare the axes of the stored values."""
        names = [axes.name for axes in self.stored_values.values()]
        return wrapped_list("static constexpr int AXES[] = {", names, "};", column=4)

    @property
    def has_axes(self) -> bool:
        """Tell whether a step reads or writes row or column values."""
        return any(axes is not Axes.TENSOR for axes in self._used_values().values())

    def _used_values(self) -> dict[str, Axes]:
        used = {n for step in self.phase_steps.steps for n in (*step.reads, *step.writes)}
        return {n: axes for n, axes in self.phase_steps.axes.items() if n in used}

    def steps(self) -> list[str]:
        """Declare the steps: their indices, and the table of what they read and write."""
        index_names = [step.index_name for step in self.phase_steps.steps]
        lines = wrapped_list("enum { ", [*index_names, "STEP_COUNT"], " };", column=4)
        lines.append("static constexpr Step STEPS[] = {")
        for step in self.phase_steps.steps:
            step_type = {"": "LOOP", "max_abs": "MAX"}.get(step.reduction, step.reduction.upper())
            step_type = "DRAW" if step.draws else step_type
            reads = () if step.is_total_sum else step.reads
            writes = [n for n in step.writes if n in self.stored_values]
            fields = [step.axes.name, _set(reads), _set(writes), str(self._index_of(step))]
            lines += indented(wrapped_list("{", [f"Step::{step_type}", *fields], "},", column=8))
        return [*lines, "};"]

    def _index_of(self, step: Step) -> int:
        """Return the index of a reduction among those to its axes, or of the number it computes."""
        if step.reduction and step.axes is Axes.NONE:
            return self.phase_steps.numbers.index(step.numbers_written[0])
        reductions = self._reductions(step.axes)
        return reductions.index(step) if step in reductions else 0

    def _reductions(self, axes: Axes) -> list[Step]:
        """Return the reductions to these axes.

        Reductions to rows and columns are left out unless they reduce elements, because the others
        have all their operands in one place.
        """
        reductions = (
            step for step in self.phase_steps.steps if step.reduction and step.axes is axes
        )
        return [step for step in reductions if step.over_elements or axes is Axes.MATRIX]

    def passes(self) -> list[str]:
        """Declare the passes of all tiling strategies, and the sizes of buffers."""
        used = {n: axes for n, axes in self.streams.items() if n in self._used_values()}
        strategies = tiling_strategies(self.phase_steps.steps, used, self.has_axes)
        lines = [line for name, passes in strategies.items() for line in _pass_table(name, passes)]
        pass_counts = ", ".join(str(len(passes)) for passes in strategies.values())
        names = (name if passes else "nullptr" for name, passes in strategies.items())
        rows, columns, matrices = (
            len(self._reductions(a)) for a in (Axes.ROW, Axes.COLUMN, Axes.MATRIX)
        )
        return [
            *lines,
            *wrapped_list("static constexpr const Pass* PASSES[] = {", names, "};", column=4),
            f"static constexpr int PASS_COUNTS[] = {{{pass_counts}}};",
            f"static constexpr bool HAS_AXES = {str(self.has_axes).lower()};",
            f"static constexpr int NUMBERS = {len(self.phase_steps.numbers)};",
            *self._stored_numbers(),
            f"static constexpr int ROW_REDUCTIONS = {rows}, COLUMN_REDUCTIONS = {columns};",
            f"static constexpr int MATRIX_REDUCTIONS = {matrices};",
        ]

    def _stored_numbers(self) -> list[str]:
        """Declare which numbers are new values of scalar states, if any are."""
        numbers = self.phase_steps.numbers
        pairs = [
            (numbers.index(symbol), symbol) for symbol in self.scalar_states if symbol in numbers
        ]
        stored = [f"{{{number}, {constant(symbol)}}}" for number, symbol in pairs]
        head = "static constexpr StoredNumber STORED_NUMBERS[] = {"
        return wrapped_list(head, stored, "};", column=4) if stored else []


def _set(names: Iterable[str]) -> str:
    return f"set({', '.join(map(constant, names))})"


def _pass_table(name: str, passes: Sequence[Pass]) -> list[str]:
    """Declare the passes of one tiling strategy."""
    if not passes:
        return []
    lines = [f"static constexpr Pass {name}[] = {{"]
    for each in passes:
        fields = (
            [step.index_name for step in each.on_tiles],
            [step.index_name for step in each.after_tiles],
            [constant(value) for value in each.stores],
        )
        sets = [line for names in fields for line in wrapped_list("set(", names, "),", column=16)]
        lines += indented(["{", *indented(sets), "},"])
    return [*lines, "};"]


def _check_values(algorithm: Algorithm, num_values: int, num_steps: int) -> None:
    """Check that a rule has no more values and steps than a kernel can have.

    Args:
        algorithm: the rule's algorithm; an error names its place.
        num_values: the number of streams, rows, columns and matrix values.
        num_steps: the number of reductions and loops.

    Raises:
        RuleError: There are more than `_MAX_VALUES` values or more than `_MAX_VALUES` steps.
    """
    counts = {
        "reductions and loops": num_steps,
        "streams, rows, columns and matrix values": num_values,
    }
    for items, count in counts.items():
        if count > _MAX_VALUES:
            message = f"a kernel has at most {_MAX_VALUES} {items}; this rule has {count}"
            hint = "reduce fewer values to numbers, rows and columns"
            raise RuleError(algorithm.place, message, hint)
