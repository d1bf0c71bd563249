"""Refuse numbers that are written in a rule but are out of the range of the op that takes them.

The result would be NaN or infinite in every step, or would not be what the author means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from optgen.ir.nodes import Call, Expr
from optgen.spec.constant_arithmetic import value_of
from optgen.spec.source import Source


@dataclass(frozen=True)
class _Range:
    """The values that an argument of an op may have, by its position."""

    op: str
    position: int
    holds: Callable[[float], bool]
    message: str
    hint: str


_ROOT_HINT = "inverse_root(x, 4, eps) is (x + eps I)^(-1/4)"
_DIVISOR_HINT = "divide by a number that is not 0"
_RANGES = (
    _Range("/", 1, lambda n: n != 0, "a quotient by 0", _DIVISOR_HINT),
    _Range("%", 1, lambda n: n != 0, "a remainder by 0", _DIVISOR_HINT),
    _Range("inverse_root", 1, lambda n: n > 0, "the root {} is not above 0", _ROOT_HINT),
    _Range(
        "inverse_root",
        2,
        lambda eps: eps >= 0,
        "eps is {}, and the eigenvalue 0 would become negative",
        "write 0 or more: eps is added to the eigenvalues",
    ),
    _Range(
        "orthogonalize",
        2,
        lambda steps: steps >= 0 and steps % 1 == 0,
        "{} is no number of steps",
        "write a whole number, such as 5",
    ),
    _Range(
        "orthogonalize",
        3,
        lambda eps: eps >= 0,
        "eps is {}, below 0",
        "write 0 or more: it is the least norm to divide by",
    ),
)


def check_arguments(source: Source, value: Expr) -> None:
    """Check the arguments of a call that consist of constants.

    Raises:
        SpecError: an argument is out of the range of its op.
    """
    if not isinstance(value, Call):
        return
    for allowed in _RANGES:
        if allowed.op == value.op:
            argument = value.args[allowed.position]
            number = value_of(argument)
            if number is not None and not allowed.holds(number):
                place = argument.place or value.place
                source.error_at(place, allowed.message.format(number), allowed.hint)
    if value.op == "clamp":
        low, high = map(value_of, value.args[1:])
        if low is not None and high is not None and low > high:
            message = f"`clamp` between {low} and {high} is always {high}"
            source.error_at(value.place, message, "write the lower bound first: clamp(x, -1, 1)")
