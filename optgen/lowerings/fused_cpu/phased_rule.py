"""Print a rule with phases as a C++ struct: tables of values, steps and passes, and loops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from optgen.ir.binding_times import Axes
from optgen.ir.nodes import assigns
from optgen.ir.plan import Plan
from optgen.lowerings.fused_cpu.expression_printer import ExpressionPrinter, constant, variable
from optgen.lowerings.fused_cpu.kernel_limits import check_values
from optgen.lowerings.fused_cpu.line_layout import (
    declarations,
    indented,
    indented_blocks,
    wrapped_list,
    wrapped_statement,
)
from optgen.lowerings.fused_cpu.loop_ir import Loop, LoopArray
from optgen.lowerings.fused_cpu.loop_printer import LoopPrinter
from optgen.lowerings.fused_cpu.pass_schedule import Pass, tiling_strategies
from optgen.lowerings.fused_cpu.phase_steps import PhaseSteps, Step
from optgen.lowerings.fused_cpu.random_keys import make_key
from optgen.lowerings.fused_cpu.scalar_program import ScalarProgram
from optgen.lowerings.fused_cpu.statements import Statements
from optgen.lowerings.fused_cpu.sweep_printer import COMPUTE_TYPE, Sum, SweepPrinter
from optgen.lowerings.fused_cpu.template_variants import dispatch_call, switch_case
from optgen.passes.name_random import Draws, name_random

_COLUMN = 8
_ARGUMENT_TYPES = {
    "hypers": "const Hypers&",
    "scalars": "const Scalars&",
    "sizes": "const Sizes&",
    "fresh": "unsigned",
}


@dataclass(frozen=True)
class PhasedRule:
    """Printer of the struct of one plan, or of one part of a plan between matrix ops."""

    name: str
    about: str
    plan: Plan
    streams: Mapping[str, Axes]  # of all plans, in the table's order
    fresh: Sequence[str]
    is_last: bool = True  # whether no later part of the plan needs the same scalars

    @cached_property
    def program(self) -> ScalarProgram:
        """Printer of the scalar program."""
        return ScalarProgram(self.plan, self.fresh)

    @cached_property
    def body(self) -> PhaseSteps:
        """Steps of the plan, and their values."""
        plan, draws = self._named
        return PhaseSteps(plan, dict(self.streams), draws)

    @cached_property
    def _named(self) -> tuple[Plan, Draws]:
        """The plan with names in place of random numbers, and the calls by name."""
        return name_random(self.plan)

    def context(self) -> dict[str, Any]:
        """Return the template's variables.

        Raises:
            RuleError: The rule has too many values or steps.
        """
        check_values(self.plan.algorithm, len(self._values_with_axes), len(self.body.steps))
        blocks = {
            "scalars": (2, declarations("double", self.program.fields.values(), 8)),
            "numbers": (2, declarations("double", map(variable, self.body.numbers), 8)),
            "names": (1, self._values()),
            "axes": (1, self._axes()),
            "steps": (1, self._steps()),
            "passes": (1, self._passes()),
            "applies": (1, self._applies()),
            "program": (2, self.program.lines()),
            "number_cases": (3, self._number_cases()),
            "draw_cases": (3, self._draw_cases()),
            "loop_cases": (3, self._loop_cases(over_elements=True)),
            "axis_cases": (3, self._loop_cases(over_elements=False)),
        }
        return {
            "name": self.name,
            "about": self.about,
            "reads_sizes": str(self.program.reads_sizes or bool(self.plan.facts)).lower(),
            "last": str(self.is_last).lower(),
            "has_axes": self.has_axes,
            "inputs": ", ".join(self.program.parameters()),
            "functions": ["\n".join(indented(lines)) for lines in self._functions()],
            **indented_blocks(blocks),
        }

    @cached_property
    def _values_with_axes(self) -> dict[str, Axes]:
        """The axes of each stored value. A value that a loop only sums is not stored."""
        read = {n for s in self.body.steps if not self._is_total_sum(s) for n in s.reads}
        only_summed = {n for s in self.body.steps if self._is_total_sum(s) for n in s.reads} - read
        return {n: axes for n, axes in self.body.axes.items() if n not in only_summed}

    def _is_total_sum(self, step: Step) -> bool:
        """Tell whether a step is a sum over all elements, which its loop accumulates."""
        return step.over_elements and step.reduction == "sum" and step.axes is Axes.NONE

    def _values(self) -> list[str]:
        """Declare the indices of the values that are not streams, behind those of the streams."""
        others = [constant(n) for n in self._values_with_axes if n not in self.streams]
        first, *rest = [*others, "VALUES"]
        return wrapped_list("enum { ", [f"{first} = STREAMS", *rest], " };", 4)

    def _axes(self) -> list[str]:
        names = [axes.name for axes in self._values_with_axes.values()]
        return wrapped_list("static constexpr int AXES[] = {", names, "};", 4)

    @property
    def has_axes(self) -> bool:
        """Tell whether a step reads or writes row or column values."""
        return any(axes is not Axes.TENSOR for axes in self._used_values().values())

    def _used_values(self) -> dict[str, Axes]:
        used = {n for step in self.body.steps for n in (*step.reads, *step.writes)}
        return {n: axes for n, axes in self.body.axes.items() if n in used}

    def _reductions(self, axes: Axes) -> list[Step]:
        """Return the reductions to these axes.

        Reductions to rows and columns count only if they reduce elements. Other reductions to rows
        and columns have all their operands in one place.
        """
        reductions = (step for step in self.body.steps if step.reduction and step.axes is axes)
        return [step for step in reductions if step.over_elements or axes is Axes.MATRIX]

    def _steps(self) -> list[str]:
        """Declare the steps: their indices, and the table of what they read and write."""
        named = [_step_name(step) for step in self.body.steps]
        lines = wrapped_list("enum { ", [*named, "STEP_COUNT"], " };", 4)
        lines.append("static constexpr Step STEPS[] = {")
        for step in self.body.steps:
            step_type = {"": "LOOP", "max_abs": "MAX"}.get(step.reduction, step.reduction.upper())
            step_type = "DRAW" if step.draws else step_type
            reads = () if self._is_total_sum(step) else step.reads
            writes = [n for n in step.writes if n in self._values_with_axes]
            row = [step.axes.name, _set(reads), _set(writes), str(self._index_of(step))]
            lines += indented(wrapped_list("{", [f"Step::{step_type}", *row], "},", 8))
        return [*lines, "};"]

    def _index_of(self, step: Step) -> int:
        """Return the index of a reduction among those to its axes, or of the number it computes."""
        if step.reduction and step.axes is Axes.NONE:
            return self.body.numbers.index(step.numbers_written[0])
        counted = self._reductions(step.axes)
        return counted.index(step) if step in counted else 0

    def _passes(self) -> list[str]:
        """Declare the passes of all tiling strategies, and the sizes of buffers."""
        used = {n: axes for n, axes in self.streams.items() if n in self._used_values()}
        strategies = tiling_strategies(self.body.steps, used, self.has_axes)
        lines = [line for name, passes in strategies.items() for line in _pass_table(name, passes)]
        counts = ", ".join(str(len(passes)) for passes in strategies.values())
        names = (name if passes else "nullptr" for name, passes in strategies.items())
        rows, columns, matrices = (
            len(self._reductions(a)) for a in (Axes.ROW, Axes.COLUMN, Axes.MATRIX)
        )
        return [
            *lines,
            *wrapped_list("static constexpr const Pass* PASSES[] = {", names, "};", 4),
            f"static constexpr int PASS_COUNTS[] = {{{counts}}};",
            f"static constexpr bool HAS_AXES = {str(self.has_axes).lower()};",
            f"static constexpr int NUMBERS = {len(self.body.numbers)};",
            *self._stored_numbers(),
            f"static constexpr int ROW_REDUCTIONS = {rows}, COLUMN_REDUCTIONS = {columns};",
            f"static constexpr int MATRIX_REDUCTIONS = {matrices};",
        ]

    def _stored_numbers(self) -> list[str]:
        """Declare which numbers are new values of scalar states, if any are."""
        numbers, states = self.body.numbers, self.plan.algorithm.scalar_states()
        pairs = [(numbers.index(s.symbol), s.symbol) for s in states if s.symbol in numbers]
        stored = [f"{{{number}, {constant(symbol)}}}" for number, symbol in pairs]
        head = "static constexpr StoredNumber STORED_NUMBERS[] = {"
        return wrapped_list(head, stored, "};", 4) if stored else []

    def _applies(self) -> list[str]:
        """Declare the test that decides whether the plan applies to a parameter."""
        tests = [f"{'' if holds else '!'}{fact}(sizes)" for fact, holds in self.plan.facts.items()]
        parameter = "const Sizes& sizes" if tests else "const Sizes&"
        return [f"static bool applies({parameter}) {{ return {' && '.join(tests) or 'true'}; }}"]

    def _loops(self) -> Iterator[Step]:
        return (step for step in self.body.steps if not step.reduction and not step.draws)

    def _functions(self) -> Iterator[list[str]]:
        for step in self._draws():
            yield self._draw_function(step)
        for step in self._loops():
            yield (
                self._number_function(step) if step.axes is Axes.NONE else self._loop_function(step)
            )

    def _draws(self) -> Iterator[Step]:
        return (step for step in self.body.steps if step.draws)

    def _draw_function(self, step: Step) -> list[str]:
        """Return a C++ function that fills an array with the random numbers of `n` elements.

        Its argument `place` is the index of the first element.
        """
        assert step.draws
        key = make_key(step.draws, self._scalar_printer(Loop((), ())))
        parameters = ["const Scalars& scalars", "i64 place", "i64 n", "C* to"]
        return [
            "template <class C>",
            *wrapped_list(f"static void {step.name}(", parameters, ") {", 4),
            *indented(wrapped_statement(f"draw_numbers({key}, place, n, to);", _COLUMN)),
            "}",
        ]

    def _draw_cases(self) -> list[str]:
        return [
            line
            for step in self._draws()
            for line in switch_case(
                _step_name(step), [f"return {step.name}(inputs.scalars, place, n, to);"]
            )
        ]

    def _printer(self, step: Step) -> LoopPrinter:
        """Return the printer of a loop with the arrays and sums that it needs."""
        sums = self._sums(step)
        arrays = [
            self._array(n, step)
            for n in self._values_with_axes
            if n in _values_read_or_written(step)
        ]
        numbers = {n: f"numbers.{variable(n)}" for n in step.numbers_read}
        loop = Loop(arrays, step.body, numbers, [s.operand for s in sums])
        if step.axes is not Axes.TENSOR:
            return LoopPrinter(self._named[0], loop, self.program)
        used = [*(s.axes for s in sums), *(array.axes for array in arrays)]
        by_rows = any(axes not in (Axes.NONE, Axes.TENSOR) for axes in used)
        all_elements = "rows * n" if self.has_axes else "n"
        return SweepPrinter(self._named[0], loop, self.program, sums, by_rows, all_elements)

    def _sums(self, loop: Step) -> list[Sum]:
        """Return the sums that a loop over elements accumulates."""
        return [
            Sum(step.name, step.reads[0], step.axes)
            for step in self.body.steps
            if loop.over_elements
            and step.reduction == "sum"
            and step.over_elements
            and step.reads[0] in loop.writes
        ]

    def _array(self, name: str, step: Step) -> LoopArray:
        """Return the array of a value as a loop uses it."""
        axes, when = self.body.axes[name], self._existence_conditions.get(name)
        readers = [
            s.reduction
            for s in self.body.steps
            if s.reduction and s.over_elements and name in s.reads
        ]
        # A column value varies along a loop over elements, so it is never one number there.
        varies = axes is step.axes or (axes is Axes.COLUMN and step.axes is Axes.TENSOR)
        only_summed = step.over_elements and "sum" in readers and "max_abs" not in readers
        type_ = "S" if name in self.streams and axes is Axes.TENSOR else COMPUTE_TYPE
        type_ = type_ if step.axes is Axes.TENSOR else "C"
        return LoopArray(
            name,
            name in step.reads,
            name in step.writes,
            when,
            axes,
            not varies,
            only_summed,
            type_,
        )

    @cached_property
    def _existence_conditions(self) -> dict[str, str | None]:
        return {s.symbol: s.when for s in self.plan.algorithm.states}

    def _flag_parameters(self, printer: LoopPrinter) -> list[str]:
        expanded = "EXPANDED" in "".join(printer.lines())
        return [*(["EXPANDED"] if expanded else []), *printer.flags.values()]

    def _loop_function(self, step: Step) -> list[str]:
        """Return the function template of a loop."""
        printer = self._printer(step)
        template_parameters = [
            *(f"class {name}" for name in _types(step)),
            *(f"bool {name}" for name in self._flag_parameters(printer)),
        ]
        return [
            f"template <{', '.join(template_parameters)}>",
            *wrapped_list(f"NOINLINE static void {step.name}(", printer.parameters(), ") {", 4),
            *indented(printer.lines()),
            "}",
        ]

    def _number_function(self, step: Step) -> list[str]:
        """Return a function that computes numbers of the whole tensor, in double."""
        types = {**_ARGUMENT_TYPES, "numbers": "Numbers&"}
        parameters = [f"{type_} {n}" for n, type_ in types.items() if n in self._inputs_read(step)]
        head = wrapped_list(f"static void {step.name}(", parameters, ") {", 4)
        return [*head, *indented(self._arithmetic(step)), "}"]

    def _arithmetic(self, step: Step) -> list[str]:
        """Return the body of a function that computes numbers of the whole tensor."""
        scalars = self._scalar_printer(Loop((), (), {n: variable(n) for n in step.numbers_read}))
        statements = Statements(
            "double",
            lambda stmt: scalars(stmt.value),
            lambda condition: f"if ({scalars(condition)})",
            step.body,
            frozenset(step.numbers_read),
            frozenset(step.numbers_written),
        )
        assigned = {a.target.name for a in assigns(step.body)}
        return [
            *(
                f"{'' if n in assigned else 'const '}double {variable(n)} = numbers.{variable(n)};"
                for n in step.numbers_read
            ),
            *statements.lines(_COLUMN),
            *(f"numbers.{variable(n)} = {variable(n)};" for n in step.numbers_written),
        ]

    def _scalar_printer(self, loop: Loop) -> ExpressionPrinter:
        """Return a printer of numbers that are known before a loop."""
        read = LoopPrinter(self.plan, loop, self.program).read_scalar
        return ExpressionPrinter(tensors=False, read=read)

    def _inputs_read(self, step: Step) -> list[str]:
        """Return the names of the inputs that a function on numbers reads."""
        text = "\n".join(self._arithmetic(step))
        return [*(n for n in _ARGUMENT_TYPES if f"{n}." in text or f"({n} " in text), "numbers"]

    def _number_cases(self) -> list[str]:
        lines = []
        for step in self._loops():
            if step.axes is Axes.NONE:
                fields = (
                    "named_numbers()" if n == "numbers" else n for n in self._inputs_read(step)
                )
                call = wrapped_list(
                    f"return {step.name}(", (f"inputs.{n}" for n in fields), ");", 16
                )
                lines += switch_case(_step_name(step), call)
        return lines

    def _loop_cases(self, *, over_elements: bool) -> list[str]:
        loops = (step for step in self._loops() if step.axes is not Axes.NONE)
        steps = (step for step in loops if (step.axes is Axes.TENSOR) is over_elements)
        return [line for step in steps for line in switch_case(_step_name(step), self._call(step))]

    def _call(self, step: Step) -> list[str]:
        """Return the lines that call the instantiation of a loop for the values of its flags."""
        printer = self._printer(step)
        arguments = printer.arguments("at", "inputs.")
        first_arguments = [
            *_types(step),
            *(name for name in self._flag_parameters(printer) if name == "EXPANDED"),
        ]
        flags = printer.flags
        return dispatch_call(step.name, first_arguments, flags, arguments, "inputs.hypers", 16)


def _types(step: Step) -> list[str]:
    """Return a loop's type parameters: the storage type of streams, and the compute type."""
    return ["S", "C"] if step.axes is Axes.TENSOR else ["C"]


def _values_read_or_written(step: Step) -> set[str]:
    return {*step.reads, *step.writes}


def _step_name(step: Step) -> str:
    if step.draws:
        return step.name.upper()
    return f"{'MAKE' if step.reduction else 'RUN'}_{step.name.upper()}"


def _set(names: Iterable[str]) -> str:
    return f"set({', '.join(map(constant, names))})"


def _pass_table(name: str, passes: Sequence[Pass]) -> list[str]:
    """Declare the passes of one tiling strategy."""
    if not passes:
        return []
    lines = [f"static constexpr Pass {name}[] = {{"]
    for each in passes:
        groups = (
            [_step_name(step) for step in each.steps],
            [_step_name(step) for step in each.finish],
            [constant(value) for value in each.stores],
        )
        sets = [line for group in groups for line in wrapped_list("set(", group, "),", 16)]
        lines += indented(["{", *indented(sets), "},"])
    return [*lines, "};"]
