"""Describe a compiled kernel: the streams it takes, in the order of its table."""

import ctypes

import torch
from torch import Tensor

from optgen.runtime.batch.hyperparameters import HyperConverter
from optgen.runtime.fused_cpu.kernel.matrix_calls import parse_calls
from optgen.runtime.fused_cpu.kernel.stream_codes import STREAM_BITS, shifted_to_stream
from optgen.runtime.protocols import Group, HasLowerings
from optgen.runtime.rule import Rule, State


class KernelSignature:
    """Streams of a compiled rule, and the properties that its library exports."""

    def __init__(self, lowered: HasLowerings, library: ctypes.CDLL) -> None:
        self.rule, self._library = lowered.rule, library
        self.pack_hypers = HyperConverter(lowered).row
        self.shaped_states, self.scalar_keys = shaped_states_and_scalar_keys(lowered.rule)
        self.has_shapes = self._exports("optgen_shapes")
        self.by_matrix = self._exports("optgen_by_matrix")
        self.matrix_calls = parse_calls(self._exported_text("optgen_calls"))
        # Names of the locals: operands and results of matrix ops, which no state holds.
        self.local_names = tuple(self._exported_text("optgen_locals").split())
        self.stream_count = 2 + len(self.shaped_states) + len(self.local_names)
        # The parameter and its gradient come first. They have no key in the state, nor do locals.
        unnamed = ("",) * len(self.local_names)
        self.keys = (
            "",
            "",
            *(state.key for state in self.shaped_states),
            *unnamed,
            *self.scalar_keys,
        )

    def _exports(self, name: str) -> bool:
        try:
            return bool(self._library[name])
        except (AttributeError, UnicodeDecodeError):  # the error names the path: it may be no UTF-8
            return False

    def _exported_text(self, name: str) -> str:
        """Return a string that the library exports; "" if it exports none of that name."""
        if not self._exports(name):
            return ""
        return (ctypes.c_char_p.in_dll(self._library, name).value or b"").decode()

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
