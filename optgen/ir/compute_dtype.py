"""Tell which rules compute in float32 or wider, whatever dtypes their tensors have."""

from __future__ import annotations

from optgen.ir.algorithm import Algorithm
from optgen.ir.whole_matrices import why_uncut


def widens(algorithm: Algorithm) -> bool:
    """Tell whether every lowering computes in float32 or wider, whatever the tensors' dtypes.

    The lowerings do so if the rule rounds values to the parameter's dtype or draws random numbers,
    or if a state that is not "scalar" declares a dtype.
    """
    declares_dtype = any(state.dtype and state.shape != "scalar" for state in algorithm.states)
    return declares_dtype or algorithm.has_storage_ops or algorithm.has_random_ops


def widens_in_python(algorithm: Algorithm) -> bool:
    """Tell whether the for-loop and foreach compute in float32 or wider, as the kernels always do.

    In float16 an `eps` of 1e-8 is 0, and the square of a small gradient is, too. Only rules with
    `compute_dtype="param"` compute in 16 bits, as torch's classes do, and functions of lists, whose
    caller chooses. Rules on whole matrices widen each tensor where they read it.
    """
    in_param_dtype = algorithm.compute_dtype == "param" or algorithm.lists
    return widens(algorithm) or not (in_param_dtype or why_uncut(algorithm))
