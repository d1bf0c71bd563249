"""Build the kernels of a rule on whole matrices, one for each sweep between its matrix words.

The step itself is eager code in the generated module `outlined`. It calls these kernels.
"""

import importlib
from typing import cast

import torch

from optgen.runtime.batch.batch import Batch
from optgen.runtime.fused_cpu.kernel_loader import kernel_or_reason
from optgen.runtime.protocols import HasLowerings
from optgen.runtime.toolchain import dtype_variants


def obstacle(lowered: HasLowerings, batch: Batch) -> str:
    """Return a short reason why the sweeps cannot take this batch; "" if they can."""
    if not lowered.rule.sweeps:
        return lowered.rule.why_no_sweeps
    if batch.dispatch_key.sharding:  # owners of shards step with foreach
        return lowered.rule.why_uncut
    if class_name := batch.overriding_class:
        return f"a state of class {class_name}"
    if batch.dispatch_key.device != "cpu":
        return f"the tensors are on {batch.dispatch_key.device}"
    # The step copies 16-bit tensors to float32, so sweeps get only float32 and float64.
    are_double = {param.dtype == torch.float64 for param in batch.params}
    sweep_dtypes = [torch.float64 if is_double else torch.float32 for is_double in are_double]
    dtype_bits = dtype_variants.bits_of_dtypes(sweep_dtypes)
    for name in lowered.rule.sweeps:
        function = cast(
            HasLowerings, importlib.import_module(f"{lowered.lowerings}.{name}")._update
        )
        kernel = kernel_or_reason(function, dtype_bits)
        if isinstance(kernel, str):
            return kernel
    return ""
