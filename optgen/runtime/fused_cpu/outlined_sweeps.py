"""Build the kernels of a rule on whole matrices, one for each sweep between its matrix words.

The generated module `outlined` has the step, which is eager code. It calls the sweeps.
"""

import importlib
from typing import cast

import torch

from optgen.runtime.batch.batch import Batch
from optgen.runtime.fused_cpu.kernel_loader import kernel_or_reason
from optgen.runtime.fused_cpu.toolchain import dtype_variants
from optgen.runtime.protocols import Lowered


def obstacle(owner: Lowered, batch: Batch) -> str:
    """Say in a few words why the sweeps cannot take this batch; "" if they can."""
    if not owner.rule.sweeps or batch.dispatch_key.sharding:  # owners take the foreach form
        return owner.rule.why_uncut
    if strange := batch.overriding_class:
        return f"a state of class {strange}"
    if batch.dispatch_key.device != "cpu":
        return f"the tensors are on {batch.dispatch_key.device}"
    doubles = any(param.dtype == torch.float64 for param in batch.params)
    singles = any(param.dtype != torch.float64 for param in batch.params)
    dtypes = [torch.float64] * doubles + [torch.float32] * singles
    dtype_bits = dtype_variants.bits_of_dtypes(dtypes)
    for name in owner.rule.sweeps:
        function = cast(Lowered, importlib.import_module(f"{owner.lowerings}.{name}")._update)
        kernel = kernel_or_reason(function, dtype_bits)
        if isinstance(kernel, str):
            return kernel
    return ""
