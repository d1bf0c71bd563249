"""Update batches of rules on whole matrices: torch's matrix words, and sweeps between them.

The generated module `outlined` has the step. It calls elementwise functions, each of which has a
compiled kernel of its own.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import cast

import torch

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.context import Stepping
from optgen.runtime.eager.backend import EagerBackend
from optgen.runtime.fused_cpu.kernels import kernel_or_reason
from optgen.runtime.fused_cpu.toolchain import dtype_variants
from optgen.runtime.protocols import Lowered
from optgen.runtime.sharded.consensus import Consensus

_EAGER = EagerBackend("outlined")


def obstacle(owner: Lowered, batch: Batch) -> str:
    """Say in a few words why no sweeps can take this batch; "" if they can."""
    if not owner.rule.sweeps:
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


def prepare(
    optimizer: Stepping, batches: Sequence[Batch], consensus: Consensus | None
) -> Callable[[], None]:
    """Check batches; return a function that updates them."""
    return _EAGER.prepare(optimizer, batches, consensus)
