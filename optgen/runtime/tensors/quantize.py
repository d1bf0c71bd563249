"""Make states of 8 bits, from values or as zeros: tensors, or DTensors with such local tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from optgen.runtime.tensors.dtensor import is_dtensor
from optgen.runtime.tensors.quantized import QuantizedTensor, spec_like
from optgen.runtime.torch_private import local_tensor


def quantize(values: Tensor, block: int, code_map: str) -> Tensor:
    """Return a tensor in 8 bits; a DTensor with its local tensors in 8 bits."""
    if not is_dtensor(type(values)):
        return QuantizedTensor.zeros_like(values, block, code_map).quantize_(values)
    local = local_tensor(values)
    return _sharded(values, QuantizedTensor.zeros_like(local, block, code_map).quantize_(local))


def quantized_zeros(like: Tensor, block: int, code_map: str) -> Tensor:
    """Return zeros like a tensor or a DTensor, in 8 bits."""
    if not is_dtensor(type(like)):
        return QuantizedTensor.zeros_like(like, block, code_map)
    return _sharded(like, QuantizedTensor.zeros_like(local_tensor(like), block, code_map))


def _sharded(like: Any, local: QuantizedTensor) -> Tensor:
    """Return a DTensor over codes, with the mesh and placements of another DTensor."""
    from optgen.runtime.tensors.quantized_dtensor import over_local

    return over_local(local, spec_like(like, local.dtype))
