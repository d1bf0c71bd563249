"""Print the C++ function that draws random numbers into an array: its definition, and a call."""

from __future__ import annotations

from dataclasses import dataclass

from optgen.lowerings.fused_cpu.expression_printer import ExpressionPrinter
from optgen.lowerings.fused_cpu.line_layout import indented, wrapped_list, wrapped_statement
from optgen.lowerings.fused_cpu.random_keys import make_key
from optgen.lowerings.fused_cpu.step import Step

_COLUMN = 8  # at which the function's body begins


@dataclass(frozen=True)
class DrawFunction:
    """Function that fills an array with the random numbers of `n` elements.

    Its argument `place` is the index of the first element.
    """

    step: Step
    number_printer: ExpressionPrinter

    def definition(self) -> list[str]:
        """Return the lines of the function template."""
        assert self.step.draws
        key = make_key(self.step.draws, self.number_printer)
        parameters = ["const Scalars& scalars", "i64 place", "i64 n", "C* to"]
        return [
            "template <class C>",
            *wrapped_list(f"static void {self.step.name}(", parameters, ") {", column=4),
            *indented(wrapped_statement(f"draw_numbers({key}, place, n, to);", _COLUMN)),
            "}",
        ]

    def call(self) -> list[str]:
        """Return the line that calls the function."""
        return [f"return {self.step.name}(inputs.scalars, place, n, to);"]
