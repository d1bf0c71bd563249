"""Check `keywords=` and `group=`, which give torch's order of arguments and of group keys."""

from __future__ import annotations

from collections.abc import Sequence

from optgen.ir.algorithm import Algorithm, Hyper
from optgen.spec.errors import did_you_mean
from optgen.spec.reserved_names import ADDED_ARGUMENTS


def order_error(algorithm: Algorithm, hypers: Sequence[Hyper]) -> tuple[str, str] | None:
    """Return the message and the hint for a missing, repeated or unknown name in an order.

    Return None if both orders are right.
    """
    names = [h.name for h in hypers]
    arguments = [h.name for h in hypers if not h.fixed]
    for option, needed, optional in (("keywords", arguments, ("*",)), ("group", names, ())):
        order: tuple[str, ...] = getattr(algorithm, option)
        for position, name in enumerate(order):
            if name not in (*needed, *ADDED_ARGUMENTS, *optional) or name in order[:position]:
                problem = "occurs twice" if name in order[:position] else "is no argument"
                hint = did_you_mean(name, needed, f"arguments: {', '.join(needed)}")
                return f"`{name}` in {option} {problem}", hint
        missing = [name for name in needed if order and name not in order]
        if missing:
            hint = f"add it; or remove {option} to keep the spec's own order"
            return f"{option} leaves out `{missing[0]}`", hint
    return None
