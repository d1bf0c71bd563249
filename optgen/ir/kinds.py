"""Kind = where a value lives × its axes. Joining is the maximum of the one and of the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Call, Const, Expr, Ref, children


class Home(IntEnum):
    """Where a value is known: the further down, the later and the dearer."""

    STATIC = 0  # flags, choices, truth of a hyperparameter: known when the step begins
    GROUP = 1  # a number of the param group
    PARAM = 2  # a number of one parameter: from its step count and scalar state
    DEVICE = 3  # downstream of a reduction: never leaves the device


class Axes(IntEnum):
    """The shape of a value. Rows and columns join to the whole tensor."""

    NONE = 0
    ROW = 1
    COLUMN = 2
    TENSOR = 3


@dataclass(frozen=True, slots=True)
class Kind:
    """Where a value lives, and its axes."""

    home: Home
    axes: Axes = Axes.NONE

    @property
    def is_tensor(self) -> bool:
        """Whether there is more than one number of it per parameter."""
        return self.axes is not Axes.NONE

    def join(self, other: Kind) -> Kind:
        """The kind of something made from both."""
        return Kind(Home(max(self.home, other.home)), Axes(self.axes | other.axes))


STATIC = Kind(Home.STATIC)
GROUP = Kind(Home.GROUP)
PARAM = Kind(Home.PARAM)
TENSOR = Kind(Home.DEVICE, Axes.TENSOR)

Lookup = Callable[[Ref], Kind]


def declared_kinds(algorithm: Algorithm) -> dict[str, Kind]:
    """The kinds of the names in a rule's signature."""
    kinds = {algorithm.param: TENSOR, algorithm.grad: TENSOR}
    if algorithm.step:
        kinds[algorithm.step] = PARAM
    for state in algorithm.states:
        kinds[state.symbol] = PARAM if state.shape == "scalar" else TENSOR
    for hyper in algorithm.hypers:
        kinds[hyper.name] = STATIC if hyper.sort in ("flag", "choice") else GROUP
    return kinds


def kind_of(expr: Expr, kinds: Lookup) -> Kind:
    """The kind of an expression, given the kinds of the names it reads."""
    match expr:
        case Const():
            return STATIC
        case Ref():
            return kinds(expr)
        case Call("fresh", _):
            return PARAM
        case Call("truth" | "is_none", (Ref() as ref,)) if kinds(ref).home <= Home.GROUP:
            return STATIC
        case _:
            result = STATIC
            for child in children(expr):
                result = result.join(kind_of(child, kinds))
            return result
