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

from optgen.contract.states import RANK
from optgen.runtime.rule import State
from optgen.runtime.tensors.dtensor import is_dtensor, placement_text
from optgen.runtime.tensors.sharding import Sharding, sharded_dim_of, zeros_on_mesh
from optgen.runtime.torch_private import dtensor_spec


def sharded_matrix_axis(state: State) -> int:
    """Return the axis of a matrix state that is sharded where its parameter shards a matrix."""
    return -1 if state.shape[0] == RANK and state.shape[1] != RANK else -2


def matrix_placements(placements: Sequence[Any], num_axes: int, axis: int) -> tuple[Any, ...]:
    """Return the placements of a matrix state from those of its parameter.

    Args:
        placements: the placements of the parameter.
        num_axes: the number of axes of the parameter, as its rule sees it.
        axis: the axis that `sharded_matrix_axis` returns for the state.
    """
    from torch.distributed.tensor import Shard

    sharded = [(placement, sharded_dim_of(placement)) for placement in placements]
    return tuple(
        placement if dim is None or dim < num_axes - 2 else Shard(num_axes + axis)
        for placement, dim in sharded
    )


def zeros_for_matrix(
    param: Tensor, state: State, whole_shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Return zeros for a matrix state of this whole shape; a DTensor if the parameter is one."""
    if not is_dtensor(type(param)):
        return param.new_zeros(whole_shape, dtype=dtype)
    sharding = _sharding_of_state(param, state, len(whole_shape))
    local_shape = sharding.local_shape(whole_shape)
    return zeros_on_mesh(param, sharding.placements, whole_shape, local_shape, dtype)


def local_matrix_shape(param: Tensor, state: State, whole_shape: Sequence[int]) -> list[int]:
    """Return the shape of this rank's shard of a matrix state of this whole shape."""
    if not is_dtensor(type(param)):
        return list(whole_shape)
    return _sharding_of_state(param, state, len(whole_shape)).local_shape(whole_shape)


def check_matrix_sharding(param: Tensor, state: State, num_axes: int, value: Tensor) -> None:
    """Raise a RuntimeError unless a state is placed as `zeros_for_matrix` places it.

    Args:
        param: the parameter.
        state: the state.
        num_axes: the number of axes of the parameter, as its rule sees it.
        value: the value of the state.
    """
    if not is_dtensor(type(param)):
        expected, fits = "plain tensor", not is_dtensor(type(value))
    else:
        mesh, placements = _sharding_of_state(param, state, num_axes)
        expected, fits = f"DTensor{placements}", is_dtensor(type(value))
        if fits:
            spec = dtensor_spec(value)
            fits = spec.mesh == mesh and spec.placements == placements
    if not fits:
        raise RuntimeError(
            f"{state.key} is a {placement_text(value)}, but beside its parameter, a "
            f"{placement_text(param)}, it must be a {expected}: load it through "
            "torch.distributed.checkpoint"
        )


def _sharding_of_state(param: Tensor, state: State, num_axes: int) -> Sharding:
    spec = dtensor_spec(param)
    axis = sharded_matrix_axis(state)
    return Sharding(spec.mesh, matrix_placements(spec.placements, num_axes, axis))
