"""Number the streams of a rule: which of an optimizer's tensors a table of addresses lists."""

from collections.abc import Sequence

import torch
from torch import Tensor

from optgen.runtime.protocols import Group
from optgen.runtime.reader.stream_codes import STREAM_BITS, shifted_to_stream
from optgen.runtime.rule import Rule, State


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

    def needed_streams(self, group: Group, param: Tensor | None = None) -> int:
        """Return the streams that parameters of a group must have, as four set bits per stream.

        With `param`, return the streams that parameters of its shape must have.
        """
        present_keys = {
            state.key
            for state in self.rule.states
            if state.is_present(group) and (param is None or state.suits(param))
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
