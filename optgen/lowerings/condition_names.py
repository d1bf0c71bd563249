"""Choose names for conditions that are uniform over a tensor, and find the mostly false ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

from optgen.ir.algorithm import Hyper
from optgen.ir.nodes import Call, Const, Expr, Ref

_ENGLISH = {
    "+": "plus",
    "-": "minus",
    "*": "times",
    "/": "over",
    "**": "to_the",
    "%": "mod",
    "<": "below",
    "<=": "at_most",
    ">": "above",
    ">=": "at_least",
    "==": "equals",
    "!=": "differs_from",
    "truth": "has",
    "is_none": "no",
    "neg": "minus",
}
"""Words for an op in a name."""
_MAX_NAME_LENGTH = 32  # characters


def candidate_names(*conditions: Expr) -> Iterator[str]:
    """Yield candidate names: each condition in words if short, then condition1, condition2, …"""
    for name in map(_in_words, conditions):
        if len(name) <= _MAX_NAME_LENGTH and name.isidentifier():
            yield name
    yield from (f"condition{n}" for n in count(1))


def _in_words(expr: Expr) -> str:
    """Return a condition in words, joined by underscores: `has_growth_rate`."""
    match expr:
        case Const(value):
            return str(value).replace("-", "minus_").replace(".", "_")
        case Ref(name):
            return name
        case Call("not", (Call("is_none", (a,)),)):
            return f"has_{_in_words(a)}"
        case Call(word, (a,)):
            return f"{_ENGLISH.get(word, word)}_{_in_words(a)}"
        case Call(word, args):
            return f"_{_ENGLISH.get(word, word)}_".join(map(_in_words, args))
    raise TypeError(f"not a condition: {expr!r}")


def is_rare(condition: Expr, hypers: Mapping[str, Hyper]) -> bool:
    """Tell whether a condition is mostly false.

    Such a condition is a flag that is off by default, `fresh(state)`, or an `and` with such an
    operand.
    """
    match condition:
        case Ref(name) | Call("truth", (Ref(name),)):
            hyper = hypers.get(name)
            return hyper is not None and hyper.type == "flag" and not hyper.default
        case Call("and", (a, b)):
            return is_rare(a, hypers) or is_rare(b, hypers)
    return isinstance(condition, Call) and condition.op == "fresh"
