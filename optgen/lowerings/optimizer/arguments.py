"""List the constructor's arguments and the param group's keys, with types and defaults."""

from __future__ import annotations

from dataclasses import dataclass

from optgen.ir.algorithm import Algorithm, Hyper
from optgen.lowerings.python.literals import literal


@dataclass(frozen=True)
class Argument:
    """Argument of the constructor, as Python text."""

    name: str
    annotation: str
    default: str


COMMON_ARGUMENTS = (
    Argument("maximize", "bool", "False"),
    Argument("foreach", "bool | None", "None"),
    Argument("fused", "bool | None", "None"),
    Argument("capturable", "bool", "False"),
    Argument("differentiable", "bool", "False"),
)
"""Arguments that every optimizer gets, in this order unless its spec gives another."""


def arguments(algorithm: Algorithm) -> tuple[list[Argument], list[Argument]]:
    """Return the arguments that may be positional, and the keyword-only ones."""
    by_name = {h.name: _argument(h) for h in algorithm.hypers if not h.fixed}
    # An argument is keyword-only if `keywords` lists it after "*", or does not list it.
    order = algorithm.keywords or tuple(by_name)
    by_name |= {a.name: a for a in COMMON_ARGUMENTS}
    star = order.index("*") if "*" in order else len(order)
    missing = [name for name in by_name if name not in order]
    keyword_only = [*order[star + 1 :], *missing]
    return [by_name[name] for name in order[:star]], [by_name[name] for name in keyword_only]


def group_keys(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the keys of a param group except `params`, in order."""
    hypers = (h.name for h in algorithm.hypers if not h.set_by_step)
    keys = [*hypers, *(a.name for a in COMMON_ARGUMENTS)]
    return (*algorithm.group, *(key for key in keys if key not in algorithm.group))


def backfill(algorithm: Algorithm) -> dict[str, str]:
    """Return the flags of torch's class, with the values that old checkpoints get on loading."""
    texts = {a.name: a.default for a in COMMON_ARGUMENTS}
    texts |= {h.name: literal(h.default) for h in algorithm.hypers if h.type == "flag"}
    return {key: texts[key] for key in algorithm.keywords if key in texts}


def keys_that_torch_lacks(algorithm: Algorithm) -> dict[str, str]:
    """Return the keys that torch's groups lack, with defaults; {} unless the spec lists torch's."""
    keys = algorithm.group
    return {a.name: a.default for a in COMMON_ARGUMENTS if keys and a.name not in keys}


def _argument(hyper: Hyper) -> Argument:
    return Argument(hyper.name, annotation(hyper), literal(hyper.default))


def annotation(hyper: Hyper) -> str:
    """Return the type annotation of a hyperparameter."""
    if hyper.type == "flag":
        return "bool"
    if hyper.type == "choice":
        return "str | None" if None in hyper.choices else "str"
    number = "float" if hyper.tensor == "never" else "float | Tensor"
    numbers = [f"{number} | None" if hyper.may_be_none(i) else number for i in range(hyper.size)]
    return f"tuple[{', '.join(numbers)}]" if hyper.type == "tuple" else numbers[0]
