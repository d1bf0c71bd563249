"""Let the scalar program of a kernel load the scalar states that live on the device.

The scalar program of a kernel runs on the device itself, so the host need not wait for a state's
value. Every phase may read the old values, like those of other scalar states. The new values come
from reductions, so a `Finish` stores them.
"""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.algorithm import Algorithm


def load_device_scalars(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with its scalars on the device as states of the scalar program."""
    if not any(state.on_device for state in algorithm.states):
        return algorithm  # the same object, because plans are cached by identity
    states = tuple(replace(state, on_device=False) for state in algorithm.states)
    return replace(algorithm, states=states)
