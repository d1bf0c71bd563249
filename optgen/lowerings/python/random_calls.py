"""Print the draws of a rule's random numbers, which stand before the sweeps that read them."""

from __future__ import annotations

from optgen.ir.generated_names import plural
from optgen.ir.nodes import Call, always_assigned, assigns, refs
from optgen.ir.plan import Plan
from optgen.lowerings.python.expression_printer import PythonPrinter
from optgen.passes.name_random import Drawn

_PRINTER = PythonPrinter({}, {})


def undefined_before_draw(plan: Plan, drawn: Drawn) -> list[str]:
    """Return lines that define the numbers that draws read and that some path does not assign.

    A draw stands outside of branches, so it may run although its branch does not.
    """
    assigned = {a.target.name for a in assigns(plan.scalars)}
    missing = read_by(drawn) & assigned - always_assigned(plan.scalars)
    return [f"{name} = 0.0" for name in sorted(missing)]


def draw_for_lists(drawn: Drawn, extra_arguments: str = "") -> list[str]:
    """Return the lines that draw numbers for a bucket.

    `extra_arguments` is added to the arguments of the calls, and begins with a comma.
    """
    return [
        f"{plural(name)} = {call.op}({', '.join(['params', *_numbers(call)])}{extra_arguments})"
        for name, call in drawn.items()
    ]


def draw_for_one(drawn: Drawn) -> list[str]:
    """Return the lines that draw numbers for the parameter at an index."""
    return [
        f"({name},) = {call.op}({', '.join(['[params[index]]', *_numbers(call)])})"
        for name, call in drawn.items()
    ]


def read_by(drawn: Drawn) -> frozenset[str]:
    """Return the names of the numbers that the calls read."""
    return frozenset(ref.name for call in drawn.values() for ref in refs(call))


def _numbers(call: Call) -> list[str]:
    return [_PRINTER.text(argument) for argument in call.args]
