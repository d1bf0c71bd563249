"""Print the draws of a rule's random numbers, which stand before the sweeps that read them."""

from __future__ import annotations

from optgen.ir.generated_names import plural
from optgen.ir.nodes import Call, always_assigned, assigns, refs
from optgen.ir.plan import Plan
from optgen.lowerings.python.expression_printer import PythonPrinter
from optgen.passes.name_values import Draws

_PRINTER = PythonPrinter({}, {})


def defaults_before_draws(plan: Plan, draws: Draws) -> list[str]:
    """Return lines that define numbers that draws read, if a path leaves them unassigned.

    A draw stands outside of branches, so it runs even if the branch that reads its numbers does
    not run.
    """
    assigned = {a.target.name for a in assigns(plan.scalars)}
    missing = numbers_in_draws(draws) & assigned - always_assigned(plan.scalars)
    return [f"{name} = 0.0" for name in sorted(missing)]


def draw_for_lists(draws: Draws, extra_arguments: str = "") -> list[str]:
    """Return the lines that draw numbers for a bucket.

    `extra_arguments` begins with a comma and follows the other arguments of each call.
    """
    arguments = {
        name: ", ".join(["params", *_argument_texts(call)]) for name, call in draws.items()
    }
    return [
        f"{plural(name)} = {call.op}({arguments[name]}{extra_arguments})"
        for name, call in draws.items()
    ]


def draw_for_param(draws: Draws) -> list[str]:
    """Return the lines that draw numbers for the parameter at `index`."""
    return [
        f"({name},) = {call.op}({', '.join(['[params[index]]', *_argument_texts(call)])})"
        for name, call in draws.items()
    ]


def numbers_in_draws(draws: Draws) -> frozenset[str]:
    """Return the names of the numbers that draws read."""
    return frozenset(ref.name for call in draws.values() for ref in refs(call))


def _argument_texts(call: Call) -> list[str]:
    return [_PRINTER.text(argument) for argument in call.args]
