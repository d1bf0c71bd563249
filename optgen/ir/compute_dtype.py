"""Tell which rules compute in float32 or wider, whatever dtypes their tensors have."""

from __future__ import annotations

from optgen.ir.algorithm import Algorithm


def widens(algorithm: Algorithm) -> bool:
    """Tell whether every lowering computes in float32 or wider, whatever the tensors' dtypes.

    The lowerings do so if the rule rounds values to the parameter's dtype or draws random numbers,
    or if a state that is not "scalar" declares a dtype.
    """
    declares_dtype = any(state.dtype and state.shape != "scalar" for state in algorithm.states)
    return declares_dtype or algorithm.has_storage_ops or algorithm.has_random_ops
