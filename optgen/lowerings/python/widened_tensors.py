"""Print the loop in which all sweeps of a step share tensors in a wider dtype."""

from __future__ import annotations

from optgen.ir.execution import widens_in_python
from optgen.ir.generated_names import plural
from optgen.ir.plan import Plan, Stream
from optgen.lowerings.python.function import loop_iterable


def shares_widened_tensors(plan: Plan) -> bool:
    """Tell whether sweeps share widened tensors: later sweeps read what earlier ones store."""
    return widens_in_python(plan.algorithm) and len(plan.sweeps) > 1


def widened_loop_header(plan: Plan, in_lists: bool) -> str:
    """Return the header of a loop that runs once, over the tensors of all sweeps in a wider dtype.

    With `in_lists` the loop goes over lists of tensors, else over the tensors of one parameter.
    """
    streams = [Stream(plan.algorithm.param, "param", stored=False)]
    streams += [s for sweep in plan.sweeps for s in sweep.streams if s.role != "local"]
    stored = {stream.name: False for stream in streams}
    stored |= {stream.name: True for stream in streams if stream.stored}
    names = ", ".join(map(plural, stored) if in_lists else stored)
    conditions = {stream.name: stream.when for stream in streams}
    tensors = names if in_lists else ", ".join(_at_index(name, conditions[name]) for name in stored)
    trailing_comma = "," * (len(stored) == 1)
    iterable = loop_iterable(plan, f"[({tensors}{trailing_comma})]", stored.values())
    return f"for {names}{trailing_comma} in {iterable}:"


def _at_index(name: str, when: str | None) -> str:
    """Return the text of the tensor of the parameter at an index; None for an absent state."""
    text = f"{plural(name)}[index]"
    return f"{text} if {when} else None" if when else text
