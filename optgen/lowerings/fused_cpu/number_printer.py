"""Print expressions of numbers, in double: before a loop, and in functions of numbers."""

from __future__ import annotations

from collections.abc import Mapping

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Call, Expr, Ref
from optgen.ir.ops import PROPERTIES
from optgen.lowerings.fused_cpu.expression_printer import ExpressionPrinter, variable
from optgen.lowerings.fused_cpu.scalar_program import ScalarProgram


def number_printer(
    algorithm: Algorithm, program: ScalarProgram, numbers: Mapping[str, str]
) -> ExpressionPrinter:
    """Return a printer of numbers. `numbers` maps numbers that steps compute to their C++ texts."""
    hypers = {h.name: h for h in algorithm.hypers}

    def read(expr: Expr) -> str | None:
        match expr:
            case Ref(name) if name in hypers:
                text = f"hypers.{variable(name)}"
                return f"truth({text})" if hypers[name].type == "flag" else text
            case Call("fresh", (Ref(name),)):
                shift = f" >> {position}" if (position := program.fresh_symbols.index(name)) else ""
                return f"bool(fresh_bits{shift} & 1)"
            case Ref(name) if name in numbers:
                return numbers[name]
            case Ref() if expr in program.fields:
                return f"scalars.{program.fields[expr]}"
            case Call(word, _) if word in PROPERTIES:
                return f"sizes.{word}"
        return None

    return ExpressionPrinter(for_elements=False, read=read)
