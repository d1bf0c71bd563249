"""Print the C++ function that computes numbers of the whole tensor: its definition, and a call."""

from __future__ import annotations

from dataclasses import dataclass

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import assigns
from optgen.lowerings.fused_cpu.expression_printer import variable
from optgen.lowerings.fused_cpu.line_layout import indented, wrapped_list
from optgen.lowerings.fused_cpu.number_printer import number_printer
from optgen.lowerings.fused_cpu.scalar_program import ScalarProgram
from optgen.lowerings.fused_cpu.statements import Statements
from optgen.lowerings.fused_cpu.step import Step

_COLUMN = 8
_INPUT_TYPES = {
    "hypers": "const Hypers&",
    "scalars": "const Scalars&",
    "sizes": "const Sizes&",
    "fresh_bits": "unsigned",
}


@dataclass(frozen=True)
class NumberFunction:
    """Function that computes numbers of the whole tensor, in double."""

    step: Step
    algorithm: Algorithm
    program: ScalarProgram

    def definition(self) -> list[str]:
        """Return the lines of the function."""
        types = {**_INPUT_TYPES, "numbers": "Numbers&"}
        parameters = [f"{types[name]} {name}" for name in self._inputs_read()]
        head = wrapped_list(f"static void {self.step.name}(", parameters, ") {", column=4)
        return [*head, *indented(self._body()), "}"]

    def call(self) -> list[str]:
        """Return the lines that call the function."""
        fields = ("named_numbers()" if name == "numbers" else name for name in self._inputs_read())
        arguments = (f"inputs.{field}" for field in fields)
        return wrapped_list(f"return {self.step.name}(", arguments, ");", column=16)

    def _inputs_read(self) -> list[str]:
        """Return the names of the inputs that the function reads."""
        text = "\n".join(self._body())
        return [*(n for n in _INPUT_TYPES if f"{n}." in text or f"({n} " in text), "numbers"]

    def _body(self) -> list[str]:
        """Return the lines inside the function."""
        step = self.step
        printer = number_printer(
            self.algorithm, self.program, {n: variable(n) for n in step.numbers_read}
        )
        statements = Statements(
            "double",
            lambda stmt: printer(stmt.value),
            lambda condition: f"if ({printer(condition)})",
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
