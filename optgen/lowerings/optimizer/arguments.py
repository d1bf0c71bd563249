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
    known = {h.name: _argument(h) for h in algorithm.hypers if not h.fixed}
    # An argument is keyword-only if `keywords` lists it after "*", or does not list it.
    order = algorithm.keywords or tuple(known)
    known |= {a.name: a for a in COMMON_ARGUMENTS}
    star = order.index("*") if "*" in order else len(order)
    missing = [name for name in known if name not in order]
    keyword_only = [*order[star + 1 :], *missing]
    return [known[name] for name in order[:star]], [known[name] for name in keyword_only]


def group_keys(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the keys of a param group except `params`, in order."""
    hypers = (h.name for h in algorithm.hypers if not h.given)
    known = [*hypers, *(a.name for a in COMMON_ARGUMENTS)]
    return (*algorithm.group, *(name for name in known if name not in algorithm.group))


def backfill(algorithm: Algorithm) -> dict[str, str]:
    """Return the flags of torch's class, with the defaults that old checkpoints get on loading."""
    texts = {a.name: a.default for a in COMMON_ARGUMENTS}
    texts |= {h.name: literal(h.default) for h in algorithm.hypers if h.type == "flag"}
    return {key: texts[key] for key in algorithm.keywords if key in texts}


def keys_that_torch_lacks(algorithm: Algorithm) -> dict[str, str]:
    """Return the keys that torch's groups lack, with defaults, if the spec lists torch's keys."""
    lacking = (a for a in COMMON_ARGUMENTS if algorithm.group and a.name not in algorithm.group)
    return {a.name: a.default for a in lacking}


def _argument(hyper: Hyper) -> Argument:
    return Argument(hyper.name, annotation(hyper), literal(hyper.default))


def annotation(hyper: Hyper) -> str:
    """Return the type annotation of a hyperparameter."""
    if hyper.type == "flag":
        return "bool"
    if hyper.type == "choice":
        return "str | None" if None in hyper.choices else "str"
    number = "float" if hyper.tensor == "never" else "float | Tensor"
    numbers = [number + " | None" * hyper.may_be_none(i) for i in range(hyper.size)]
    return f"tuple[{', '.join(numbers)}]" if hyper.type == "tuple" else numbers[0]
