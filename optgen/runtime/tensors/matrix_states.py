"""Placements of states that are square or thin matrices, if the parameters are DTensors.

Such a state has the mesh and the leading axes of its parameter. Each mesh dimension that shards
rows or columns of the parameter shards one axis of the state, so every rank has a shard of the
state. That axis is the axis of rows. If only the axis of rows has the size `rank`, it is the axis
of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.rule import RANK, State
from optgen.runtime.tensors.dtensor import is_dtensor, placement_text
from optgen.runtime.tensors.sharding import Sharding, sharded_dim_of, zeros_on_mesh
from optgen.runtime.torch_private import dtensor_spec


def sharded_matrix_axis(state: State) -> int:
    """Return the axis of a matrix state that is sharded where its parameter shards a matrix."""
    return -1 if state.shape[0] == RANK and state.shape[1] != RANK else -2


def matrix_placements(placements: Sequence[Any], dims: int, axis: int) -> tuple[Any, ...]:
    """Return the placements of a matrix state from those of its parameter.

    Args:
        placements: the placements of the parameter.
        dims: the number of axes of the parameter, as its rule sees it.
        axis: the axis that `sharded_matrix_axis` returns for the state.
    """
    from torch.distributed.tensor import Shard

    sharded = [(placement, sharded_dim_of(placement)) for placement in placements]
    return tuple(
        placement if dim is None or dim < dims - 2 else Shard(dims + axis)
        for placement, dim in sharded
    )


def zeros_for_matrix(
    param: Tensor, state: State, whole: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Return zeros of a matrix state of this whole shape; a DTensor if the parameter is one."""
    if not is_dtensor(type(param)):
        return param.new_zeros(whole, dtype=dtype)
    sharding = _sharding_of_state(param, state, len(whole))
    local = sharding.local_shape(whole)
    return zeros_on_mesh(param, sharding.placements, whole, local, dtype)


def local_matrix_shape(param: Tensor, state: State, whole: Sequence[int]) -> list[int]:
    """Return the shape of this rank's shard of a matrix state of this whole shape."""
    if not is_dtensor(type(param)):
        return list(whole)
    return _sharding_of_state(param, state, len(whole)).local_shape(whole)


def check_matrix_sharding(param: Tensor, state: State, dims: int, value: Tensor) -> None:
    """Raise a RuntimeError unless a state is placed as `zeros_for_matrix` places it.

    Args:
        param: the parameter.
        state: the state.
        dims: the number of axes of the parameter, as its rule sees it.
        value: the value of the state.
    """
    if not is_dtensor(type(param)):
        wanted, fits = "plain tensor", not is_dtensor(type(value))
    else:
        mesh, placements = _sharding_of_state(param, state, dims)
        wanted, fits = f"DTensor{placements}", is_dtensor(type(value))
        if fits:
            spec = dtensor_spec(value)
            fits = spec.mesh == mesh and spec.placements == placements
    if not fits:
        raise RuntimeError(
            f"{state.key} is a {placement_text(value)}, but beside its parameter, a "
            f"{placement_text(param)}, it must be a {wanted}: load it through "
            "torch.distributed.checkpoint"
        )


def _sharding_of_state(param: Tensor, state: State, dims: int) -> Sharding:
    spec = dtensor_spec(param)
    axis = sharded_matrix_axis(state)
    return Sharding(spec.mesh, matrix_placements(spec.placements, dims, axis))
