"""Number the streams of a rule, and allocate the table with their addresses.

A stream is one tensor for each parameter: the parameter itself, its gradient, a state. An entry of
a table has four bits for each stream, such as its dtype code.
"""

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from optgen.contract.states import Shape
from optgen.runtime.rule import Group, Rule, State

STREAM_BITS = 15
"""All four bits of a stream."""

MAX_STREAMS = 16
"""Streams whose bits fit into 64."""


def shifted_to_stream(bits: int, stream: int) -> int:
    """Shift four bits to their stream's place; the parameter's bits are the lowest."""
    return bits << 4 * stream


# The axes of a state by its shape, as tensor_request.h numbers them.
_AXES: dict[Shape, int] = {"like": 0, "row": 1, "col": 2}


class RuleStreams:
    """The streams of a rule, in the order of a table.

    The parameter and its gradient come first, then states, then locals, which no state holds. The
    cells with single numbers are last: step counts and scalar states.
    """

    def __init__(self, rule: Rule, local_names: Sequence[str] = ()) -> None:
        self.rule, self.local_names = rule, tuple(local_names)
        self.shaped_states, self.scalar_keys = shaped_states_and_scalar_keys(rule)
        self.stream_count = 2 + len(self.shaped_states) + len(self.local_names)
        # The parameter and its gradient have no key in the state, nor do locals.
        unnamed = ("",) * len(self.local_names)
        shaped_keys = (state.key for state in self.shaped_states)
        self.keys = ("", "", *shaped_keys, *unnamed, *self.scalar_keys)

    @property
    def can_be_read(self) -> bool:
        """Tell whether the C++ reader knows the shapes of all states."""
        return all(state.shape in _AXES for state in self.shaped_states)

    def axes(self) -> "array[int]":
        """Return the axes of the parameter, its gradient and the states, as the reader has them."""
        shapes = (state.shape for state in self.shaped_states)
        return array("B", map(_AXES.__getitem__, ("like", "like", *shapes)))

    def needed_streams(self, group: Group, param: Tensor | None = None) -> int:
        """Return the streams that parameters of a group must have, as four set bits per stream.

        With `param`, return the streams that parameters of its shape must have.
        """
        present_keys = {
            state.key
            for state in self.rule.states
            if state.is_present(group) and (param is None or state.suits(param, group))
        }
        # "" stands for the parameter and its gradient; locals are left out.
        present_keys |= {"", *self.scalar_keys}
        local_streams = range(2 + len(self.shaped_states), self.stream_count)
        needed = (i for i, key in enumerate(self.keys) if key in present_keys)
        return sum(shifted_to_stream(STREAM_BITS, i) for i in needed if i not in local_streams)

    def needed_by_shape(self, group: Group) -> tuple[int, int]:
        """Return `needed_streams` for vectors, and for parameters of more dimensions."""
        vector = torch.empty(0, device="cpu")
        return self.needed_streams(group, vector), self.needed_streams(group, vector[None])


def shaped_states_and_scalar_keys(rule: Rule) -> tuple[list[State], list[str]]:
    """Return the states that are no scalars, and the keys of the step count and scalar states."""
    scalar = [state.key for state in rule.states if state.shape == "scalar"]
    shaped = [state for state in rule.states if state.shape != "scalar"]
    return shaped, ["step", *scalar] if rule.step else scalar


SHAPE_SIZE = 4
"""Number of entries of a parameter's shape in a table: dimensions, matrices, rows, columns."""


class TableArrays:
    """Arrays of a table: addresses, sizes, dtype codes, groups and shapes of tensors.

    `shape` is empty unless `has_shapes`.
    """

    def __init__(self, stream_count: int, tensor_count: int, has_shapes: bool = False) -> None:
        self.address = array("q", bytes(8 * stream_count * tensor_count))
        self.elements = array("q", bytes(8 * tensor_count))
        self.dtypes = array("Q", bytes(8 * tensor_count))
        self.group = array("i", bytes(4 * tensor_count))
        self.shape = array("q", bytes(8 * SHAPE_SIZE * tensor_count * has_shapes))
