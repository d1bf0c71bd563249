"""Tell which rules compute in float32 or wider, whatever dtypes their tensors have."""

from __future__ import annotations

from optgen.ir.algorithm import NARROW, QUANTIZED, Algorithm


def widens(algorithm: Algorithm) -> bool:
    """Tell whether every lowering computes in float32 or wider, whatever the tensors' dtypes.

    The rule rounds to its parameter's dtype itself, or draws numbers of 24 bits; or a state is
    declared to be narrower than the parameter.
    """
    narrow = any(state.dtype in (*NARROW, QUANTIZED) for state in algorithm.states)
    return narrow or algorithm.rounds or algorithm.draws
