"""Tell which rules compute in float32 or wider, whatever dtypes their tensors have."""

from __future__ import annotations

from optgen.ir.algorithm import NARROW, QUANTIZED, Algorithm


def widens(algorithm: Algorithm) -> bool:
    """Tell whether every lowering computes in float32 or wider, whatever the tensors' dtypes.

    They do if the rule rounds values to the parameter's dtype or draws random numbers, or if a
    state declares a dtype of 16 or 8 bits.
    """
    narrow = any(state.dtype in (*NARROW, QUANTIZED) for state in algorithm.states)
    return narrow or algorithm.rounds or algorithm.draws
