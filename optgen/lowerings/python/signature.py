"""The signature every generated Python `update` shares: tensor lists, then hyperparameters."""

from __future__ import annotations

import re
from collections.abc import Iterable

from optgen.ir.algorithm import Algorithm, Hyper
from optgen.ir.plan import Plan

_HELPERS = (
    "advance",
    "advance_one",
    "clamp",
    "exp",
    "lerp",
    "log",
    "maximum",
    "minimum",
    "sign",
    "sqrt",
    "store",
    "store_one",
    "where",
)


def imports(lines: Iterable[str]) -> list[str]:
    """What of optgen.runtime.scalars the lines call."""
    called = {
        name for line in lines if "#" not in line for name in re.findall(r"(?<![\w.])(\w+)\(", line)
    }
    return [name for name in _HELPERS if name in called]


def plural(name: str) -> str:
    """The list of what `name` is one of."""
    return f"{name}_list" if name.endswith("s") else f"{name}s"


def list_names(algorithm: Algorithm) -> tuple[str, ...]:
    """The tensor lists, in the order the runtime hands them over."""
    states = tuple(plural(s.symbol) for s in algorithm.states)
    steps = ("state_steps",) if algorithm.step else ()
    return (plural(algorithm.param), plural(algorithm.grad), *states, *steps)


def keywords(plan: Plan) -> tuple[str, ...]:
    """The keyword-only arguments with their types: the group's values, then what is fresh."""
    hypers = (f"{h.name}: {_annotation(h)}" for h in plan.algorithm.hypers)
    return (*hypers, *(f"fresh_{key}: bool" for key in plan.fresh()))


def _annotation(hyper: Hyper) -> str:
    number = "float | Tensor" if hyper.tensor != "never" else "float"
    if hyper.optional:
        number += " | None"
    match hyper.sort:
        case "flag":
            return "bool"
        case "choice":
            return "str | None"
        case "tuple":
            return f"tuple[{', '.join([number] * hyper.size)}]"
        case _:
            return number
