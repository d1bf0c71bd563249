"""Kind = where a value lives × its axes: joined, the maximum of the one, the union of the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Call, Const, Expr, Ref, children
from optgen.ir.ops import FACTS, PROPERTIES, REDUCTIONS


class Stage(IntEnum):
    """Where a value is known: the further down, the later and the dearer."""

    STATIC = 0  # flags, choices, truth of a hyperparameter: known when the step begins
    GROUP = 1  # a number of the param group
    PARAM = 2  # a number of one parameter: from its step count and scalar state
    DEVICE = 3  # downstream of a reduction: never leaves the device


class Axes(IntEnum):
    """The shape of a value, as bits: one for the batch of matrices, one for each of the last two.

    A row value has one number per row (the last axis is 1), a column value one per column (the axis
    before it is 1); together they make the whole tensor. What both reduce to is one number per
    matrix of the batch.
    """

    NONE = 0
    MATRIX = 1
    ROW = 3
    COLUMN = 5
    TENSOR = 7


@dataclass(frozen=True, slots=True)
class Kind:
    """Where a value lives, and its axes."""

    stage: Stage
    axes: Axes = Axes.NONE

    @property
    def is_tensor(self) -> bool:
        """Whether there is more than one number of it per parameter."""
        return self.axes is not Axes.NONE

    @property
    def is_scalar(self) -> bool:
        """Whether it is one number per parameter that is known without looking at any tensor."""
        return self.axes is Axes.NONE and self.stage < Stage.DEVICE

    def join(self, other: Kind) -> Kind:
        """The kind of something made from both."""
        return Kind(Stage(max(self.stage, other.stage)), Axes(self.axes | other.axes))


STATIC = Kind(Stage.STATIC)
GROUP = Kind(Stage.GROUP)
PARAM = Kind(Stage.PARAM)
TENSOR = Kind(Stage.DEVICE, Axes.TENSOR)

Lookup = Callable[[Ref], Kind]

_STATE_KINDS = {
    "like": TENSOR,
    "row": Kind(Stage.DEVICE, Axes.ROW),
    "col": Kind(Stage.DEVICE, Axes.COLUMN),
    "scalar": PARAM,
}
_REDUCED = {
    name: Axes.ROW if name.startswith("row_") else Axes.COLUMN if name.startswith("col_") else 0
    for name in REDUCTIONS
}
"""The axes that a reduction leaves of those its argument has."""


def declared_kinds(algorithm: Algorithm) -> dict[str, Kind]:
    """The kinds of the names in a rule's signature."""
    kinds = {algorithm.param: TENSOR, algorithm.grad: TENSOR}
    if algorithm.step:
        kinds[algorithm.step] = PARAM
    for state in algorithm.states:
        kinds[state.symbol] = _STATE_KINDS[state.shape]
    for hyper in algorithm.hypers:
        kinds[hyper.name] = STATIC if hyper.type in ("flag", "choice") else GROUP
    return kinds


def kind_of(expr: Expr, kinds: Lookup) -> Kind:
    """The kind of an expression, given the kinds of the names it reads."""
    match expr:
        case Const():
            return STATIC
        case Ref():
            return kinds(expr)
        case Call(op, _) if op in FACTS:
            return STATIC
        case Call("fresh", _):
            return PARAM
        case Call(op, _) if op in PROPERTIES:
            return PARAM
        case Call(op, (arg,)) if op in _REDUCED:
            return Kind(Stage.DEVICE, Axes(kind_of(arg, kinds).axes & _REDUCED[op]))
        case Call("truth" | "is_none", (Ref() | Call("item") as asked,)) if (
            kind_of(asked, kinds).stage <= Stage.GROUP
        ):
            return STATIC
        case _:
            result = STATIC
            for child in children(expr):
                result = result.join(kind_of(child, kinds))
            return result
