"""Infer the kind of every value: the stage at which it is known (its binding time), and its axes.

The kind of a result is the latest stage and the union of the axes of its operands. Exceptions are
ops of one fixed kind, such as properties; reductions; tests for 0 and None; and linear algebra,
whose rules are in `matrix_axes`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from optgen.contract.states import FACTS, Shape
from optgen.ir.algorithm import Algorithm
from optgen.ir.matrix_axes import HEIGHT, WIDTH, axes_of_linear_algebra, axes_of_sizes, union
from optgen.ir.matrix_axes import Axes as Axes
from optgen.ir.nodes import Call, Const, Expr, Ref, children
from optgen.ir.ops import LINEAR_ALGEBRA, PROPERTIES, RANDOM_OPS, REDUCTIONS, WIDE_OPS


class Stage(IntEnum):
    """Binding time: when a value is known, from early to late."""

    STATIC = 0  # flags, choices, whether a hyperparameter is 0 or None: known before the step
    GROUP = 1  # a number of the param group
    PARAM = 2  # a number of one parameter: computed from its step count and scalar states
    DEVICE = 3  # a tensor, or computed from one by a reduction: it stays on the device


@dataclass(frozen=True, slots=True)
class Kind:
    """Stage and axes of a value."""

    stage: Stage
    axes: Axes = Axes.NONE

    @property
    def is_tensor(self) -> bool:
        """Tell whether the value may have more than one number per parameter."""
        return self.axes is not Axes.NONE

    @property
    def is_scalar(self) -> bool:
        """Tell whether the value is one number per parameter, known without reading a tensor."""
        return self.axes is Axes.NONE and self.stage < Stage.DEVICE

    def join(self, other: Kind) -> Kind:
        """Return the kind of a value computed, element by element, from a value of each kind.

        Raises:
            AxesError: the shapes do not fit.
        """
        if self is other or self == other:
            return self
        return Kind(max(self.stage, other.stage), union(self.axes, other.axes))


STATIC = Kind(Stage.STATIC)
GROUP = Kind(Stage.GROUP)
PARAM = Kind(Stage.PARAM)
DEVICE_NUMBER = Kind(Stage.DEVICE)
TENSOR = Kind(Stage.DEVICE, Axes.TENSOR)

KindLookup = Callable[[Ref], Kind]
"""Function from a name to its kind."""

_STATE_KINDS = {
    "like": TENSOR,
    "row": Kind(Stage.DEVICE, Axes.ROW),
    "col": Kind(Stage.DEVICE, Axes.COLUMN),
    "scalar": PARAM,
}
_KINDS_OF_OPS = {
    **dict.fromkeys(WIDE_OPS, DEVICE_NUMBER),
    **dict.fromkeys(RANDOM_OPS, TENSOR),
    **dict.fromkeys(PROPERTIES, PARAM),
    "fresh": PARAM,
    **dict.fromkeys(FACTS, STATIC),
}
"""The kinds of the ops whose kind does not depend on their operands."""
_KEPT_BY_PREFIX = {"row": Axes.MATRIX | HEIGHT, "col": Axes.MATRIX | WIDTH}
_KEPT_AXES = {name: _KEPT_BY_PREFIX.get(name.partition("_")[0], 0) for name in REDUCTIONS}
"""For each reduction, the mask of the axes that it keeps."""


def declared_kinds(algorithm: Algorithm) -> dict[str, Kind]:
    """Return the kinds of the names in a rule's signature."""
    kinds = {algorithm.param: TENSOR, algorithm.grad: TENSOR}
    if algorithm.step:
        kinds[algorithm.step] = PARAM
    for state in algorithm.states:
        kinds[state.symbol] = DEVICE_NUMBER if state.on_device else _kind_of_state(state.shape)
    for hyper in algorithm.hypers:
        kinds[hyper.name] = STATIC if hyper.type in ("flag", "choice") else GROUP
    return kinds


def _kind_of_state(shape: Shape) -> Kind:
    """Return the kind of a state that has this shape."""
    if isinstance(shape, str):
        return _STATE_KINDS[shape]
    return Kind(Stage.DEVICE, axes_of_sizes(*shape))


def kind_of(expr: Expr, kinds: KindLookup) -> Kind:
    """Return the kind of an expression, given the kinds of the names it reads.

    Raises:
        AxesError: shapes do not fit.
    """
    match expr:
        case Const():
            return STATIC
        case Ref():
            return kinds(expr)
        case Call(op, _) if op in _KINDS_OF_OPS:
            return _KINDS_OF_OPS[op]
        case Call(op, (arg,)) if op in _KEPT_AXES:
            return Kind(Stage.DEVICE, Axes(kind_of(arg, kinds).axes & _KEPT_AXES[op]))
        case Call(op, args) if op in LINEAR_ALGEBRA:
            operands = [kind_of(arg, kinds).axes for arg in args]
            return Kind(Stage.DEVICE, axes_of_linear_algebra(op, operands))
        case Call("truth" | "is_none", (Ref() | Call("item") as operand,)) if (
            kind_of(operand, kinds).stage <= Stage.GROUP
        ):
            return STATIC
        case _:
            result = STATIC
            for child in children(expr):
                result = result.join(kind_of(child, kinds))
            return result
