"""Make shards of tensors, and compare shards with whole tensors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributed import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, distribute_tensor


def shard(tensor: Tensor, placement: Placement | None, mesh: DeviceMesh) -> Tensor:
    """Shard a whole tensor along the mesh's last dimension.

    Without a placement, return a plain copy.
    """
    if placement is None:
        return tensor.clone()
    placements = [Replicate()] * (mesh.ndim - 1) + [placement]
    return distribute_tensor(tensor.clone(), mesh, placements, src_data_rank=None)


def difference(actual: Any, expected: Any) -> float:
    """Return the largest deviation, in units of the largest element; infinite if there is a NaN.

    For a DTensor, each rank compares its shard with the same shard of the expected tensor.
    """
    a, b = torch.as_tensor(actual), torch.as_tensor(expected)
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    if isinstance(a, DTensor):
        b = distribute_tensor(b, a.device_mesh, a.placements, src_data_rank=None).to_local()
        a = a.to_local()
    if torch.equal(a, b):
        return 0.0
    ratio = ((a - b).abs().max() / b.abs().max()).item()
    return math.inf if math.isnan(ratio) else ratio
