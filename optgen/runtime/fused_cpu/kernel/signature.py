"""Describe a compiled kernel: the streams it takes, in the order of its table."""

import ctypes

import torch
from torch import Tensor

from optgen.runtime.batch.hyperparameters import HyperConverter
from optgen.runtime.fused_cpu.kernel.matrix_calls import parse_calls
from optgen.runtime.fused_cpu.kernel.stream_codes import in_stream
from optgen.runtime.protocols import Group, HasLowerings
from optgen.runtime.rule import Rule, State


class KernelSignature:
    """Streams of a compiled rule, and the properties that its library exports."""

    def __init__(self, lowered: HasLowerings, library: ctypes.CDLL) -> None:
        self.rule, self._library = lowered.rule, library
        self.pack_hypers = HyperConverter(lowered).row
        self.shaped_states, self.scalar_keys = shaped_states_and_scalar_keys(lowered.rule)
        self.has_shapes = self._has("optgen_shapes")
        self.by_matrix = self._has("optgen_by_matrix")
        self.calls = parse_calls(self._text("optgen_calls"))
        # Streams of operands and results of matrix ops, which no state holds.
        self.locals = tuple(self._text("optgen_locals").split())
        self.streams = 2 + len(self.shaped_states) + len(self.locals)
        # The parameter and its gradient come first. They have no key in the state, nor do locals.
        unnamed = ("",) * len(self.locals)
        self.keys = ("", "", *(s.key for s in self.shaped_states), *unnamed, *self.scalar_keys)

    def _has(self, name: str) -> bool:
        return hasattr(self._library, name)

    def _text(self, name: str) -> str:
        """Return a string that the library exports; "" if it exports none of that name."""
        if not self._has(name):
            return ""
        return (ctypes.c_char_p.in_dll(self._library, name).value or b"").decode()

    def needed_streams(self, group: Group, param: Tensor | None = None) -> int:
        """Return the streams that parameters of a group must have, as four set bits per stream.

        With `param`, return the streams that parameters of its shape must have.
        """
        states = self.rule.states
        present = {
            s.key for s in states if s.is_present(group) and (param is None or s.suits(param))
        }
        # "" stands for the parameter and its gradient; locals are left out.
        present |= {"", *self.scalar_keys}
        local_streams = range(2 + len(self.shaped_states), self.streams)
        needed = (i for i, key in enumerate(self.keys) if key in present)
        return sum(in_stream(15, i) for i in needed if i not in local_streams)

    def needed_by_shape(self, group: Group) -> tuple[int, int]:
        """Return `needed_streams` for vectors, and for parameters of more dimensions."""
        vector = torch.empty(0, device="cpu")
        return self.needed_streams(group, vector), self.needed_streams(group, vector[None])


def shaped_states_and_scalar_keys(rule: Rule) -> tuple[list[State], list[str]]:
    """Return the states that are no scalars, and the keys of the step count and scalar states."""
    scalar = [state.key for state in rule.states if state.shape == "scalar"]
    shaped = [state for state in rule.states if state.shape != "scalar"]
    return shaped, ["step", *scalar] if rule.step else scalar
