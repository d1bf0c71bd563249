"""Print the C++ function of a loop over values with axes: its definition, and a call."""

from __future__ import annotations

from dataclasses import dataclass

from optgen.ir.kinds import Axes
from optgen.lowerings.fused_cpu.line_layout import indented, wrapped_list
from optgen.lowerings.fused_cpu.loop_printer import LoopPrinter
from optgen.lowerings.fused_cpu.step import Step
from optgen.lowerings.fused_cpu.template_variants import dispatch_call


@dataclass(frozen=True)
class LoopFunction:
    """Function template of a loop: on types, on `EXPANDED`, and on the flags of its arrays.

    `EXPANDED` is true if row and column values have been broadcast to every element.
    """

    step: Step
    printer: LoopPrinter

    def definition(self) -> list[str]:
        """Return the lines of the function template."""
        printer = self.printer
        template_parameters = [
            *(f"class {name}" for name in self._type_parameters()),
            *(
                f"bool {name}"
                for name in (*self._expanded_parameter(), *printer.loop.flags.values())
            ),
        ]
        head = f"NOINLINE static void {self.step.name}("
        return [
            f"template <{', '.join(template_parameters)}>",
            *wrapped_list(head, printer.parameters(), ") {", column=4),
            *indented(printer.lines()),
            "}",
        ]

    def call(self) -> list[str]:
        """Return the lines that call the instantiation for the values of the flags."""
        arguments = self.printer.arguments(addresses="at", prefix="inputs.")
        first_arguments = [*self._type_parameters(), *self._expanded_parameter()]
        flags = self.printer.loop.flags
        return dispatch_call(
            self.step.name, first_arguments, flags, arguments, "inputs.hypers", column=16
        )

    def _type_parameters(self) -> list[str]:
        """Return the type parameters: the storage type of streams, and the compute type."""
        return ["S", "C"] if self.step.axes is Axes.TENSOR else ["C"]

    def _expanded_parameter(self) -> list[str]:
        """Return the template parameter `EXPANDED`, if the loop reads it."""
        return ["EXPANDED"] if "EXPANDED" in "".join(self.printer.lines()) else []
