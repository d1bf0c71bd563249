"""Sharding of DTensors and of their states: mesh, placements and sharded dimensions.

A state that is a square or thin matrix has the mesh and the leading axes of its parameter. Each
mesh dimension that shards rows or columns of the parameter shards one axis of the state, so every
rank has a shard of the state. That axis is the axis of rows. If only the axis of rows has the size
`rank`, it is the axis of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from optgen.contract.states import RANK
from optgen.runtime.rule import State
from optgen.runtime.tensors.dtensor import is_dtensor, placement_text
from optgen.runtime.torch_private import dtensor_spec, local_tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


# mesh.size takes 30 us, and a step needs the sizes for each parameter.
_mesh_sizes: WeakKeyDictionary[Any, tuple[int, ...]] = WeakKeyDictionary()


class ShardedAxis(NamedTuple):
    """A dimension along which a parameter is sharded, with a shard for each rank of a group."""

    group: ProcessGroup
    dim: int
    shard_count: int  # the number of ranks of the group; the last shards may be small or empty
    rank: int  # this process's rank in the group, thus the index of its shard

    def sizes(self, length: int) -> list[int]:
        """Return the size of each shard of a dimension of this length."""
        size = -(-length // self.shard_count)
        return [max(0, min(size, length - size * rank)) for rank in range(self.shard_count)]


class Sharding(NamedTuple):
    """The mesh and placements of a sharded parameter; parameters of one sharding step together."""

    mesh: Any
    placements: tuple[Any, ...]

    def sharded_axes(self) -> tuple[ShardedAxis, ...]:
        """Return the sharded axes, the outermost sharding first.

        torch usually shards along the first mesh dimension first. But FSDP2 shards along an earlier
        mesh dimension than tensor parallel, and shards what tensor parallel has already sharded.
        The `split_factor` of FSDP2's placement is the number of shards that it splits further.
        """
        axes: list[ShardedAxis] = []
        for mesh_dim in reversed(range(len(self.placements))):
            placement, size = self.placements[mesh_dim], self.mesh.size(mesh_dim)
            dim = sharded_dim_of(placement)
            if dim is not None and size > 1:
                shards_before, position = getattr(placement, "split_factor", 1), 0
                while shards_before > 1 and position < len(axes):
                    outer = axes[position]
                    shards_before //= outer.shard_count if outer.dim == dim else 1
                    position += 1
                group, rank = self.mesh.get_group(mesh_dim), self.mesh.get_local_rank(mesh_dim)
                axes.insert(position, ShardedAxis(group, dim, size, rank))
        return tuple(axes)

    def shard_counts(self) -> dict[int, int]:
        """Return the number of shards along each sharded dimension."""
        counts: dict[int, int] = {}
        for placement, size in zip(self.placements, _sizes(self.mesh), strict=True):
            dim = sharded_dim_of(placement)
            if dim is not None and size > 1:
                counts[dim] = counts.get(dim, 1) * size
        return counts

    def matches_shard_of(self, tensor: Tensor) -> bool:
        """Tell whether this rank's shard of a tensor has the shape that torch's sharding gives."""
        return self.local_shape(tensor.shape) == list(local_tensor(tensor).shape)

    def local_shape(self, whole_shape: Sequence[int]) -> list[int]:
        """Return the shape of this rank's shard of a tensor of this whole shape."""
        shape = list(whole_shape)
        for axis in self.sharded_axes():
            shape[axis.dim] = axis.sizes(shape[axis.dim])[axis.rank]
        return shape


def own_shard(whole: Tensor, axes: Sequence[ShardedAxis]) -> Tensor:
    """Return a view of this rank's shard of a whole tensor; the outermost sharding comes first."""
    for axis in axes:
        sizes = axis.sizes(whole.shape[axis.dim])
        whole = whole.narrow(axis.dim, sum(sizes[: axis.rank]), sizes[axis.rank])
    return whole


def sharded_dim_of(placement: Any) -> int | None:
    """Return the dimension that a placement shards; None if it shards none."""
    dim: int | None = getattr(placement, "dim", None)
    return dim


def sharding_of(tensor: Tensor) -> Sharding | None:
    """Return the sharding of a tensor; None if this rank holds the whole tensor."""
    if not is_dtensor(type(tensor)):
        return None
    spec = dtensor_spec(tensor)
    pairs = zip(spec.placements, _sizes(spec.mesh), strict=True)
    is_sharded = any(
        sharded_dim_of(placement) is not None and size > 1 for placement, size in pairs
    )
    return Sharding(spec.mesh, spec.placements) if is_sharded else None


def _sizes(mesh: Any) -> tuple[int, ...]:
    """Return the sizes of a mesh's dimensions, from a cache."""
    sizes = _mesh_sizes.get(mesh)
    if sizes is None:
        sizes = _mesh_sizes[mesh] = tuple(map(mesh.size, range(mesh.ndim)))
    return sizes


def shard_sizes(tensor: Tensor, sizes: Sequence[int]) -> list[int]:
    """Return the sizes of this rank's shard of a tensor that is viewed in the given sizes.

    A shard of the view must have the same elements as the shard of the tensor. So all axes before a
    sharded axis must have the tensor's sizes. The sharded axis must have the tensor's size too, or
    the number of shards must divide its size in the tensor and in the view.

    Raises:
        ValueError: The tensor's shards are no shards of the view.
    """
    if tuple(sizes) == tuple(tensor.shape):
        return list((local_tensor(tensor) if is_dtensor(type(tensor)) else tensor).shape)
    sharding = sharding_of(tensor)
    local_sizes = list(sizes)
    for dim, count in sharding.shard_counts().items() if sharding else ():
        whole, same_axes_before = tensor.shape[dim], tuple(sizes[:dim]) == tuple(tensor.shape[:dim])
        if same_axes_before and sizes[dim : dim + 1] == (whole,):
            local_sizes[dim] = local_tensor(tensor).shape[dim]
        elif (
            same_axes_before and dim < len(sizes) and sizes[dim] % count == 0 and whole % count == 0
        ):
            local_sizes[dim] = sizes[dim] // count
        else:
            raise ValueError(
                f"a parameter of shape {tuple(tensor.shape)} has {count} shards along axis {dim}, "
                f"which are no shards of the view {tuple(sizes)}: axis {dim} of the view must be "
                f"as long as the parameter's, or {count} must divide both lengths"
                + (", and all axes before it must be as long as the parameter's" if dim else "")
            )
    return local_sizes


def zeros_reduced(tensor: Tensor, view: Tensor, axis: int, dtype: torch.dtype) -> Tensor:
    """Return zeros of the shape that a sum over one axis of a DTensor has: the axis has size 1.

    The zeros are a DTensor on the tensor's mesh. Its placements are the tensor's, except that the
    reduced axis is replicated.

    Args:
        tensor: a DTensor.
        view: the tensor itself, or a tensor of the shape in which its rule sees it.
        axis: the axis of `view` that is reduced.
        dtype: the dtype of the zeros.
    """
    from torch.distributed.tensor import Replicate

    axis %= view.dim()
    placements = [
        Replicate() if sharded_dim_of(placement) == axis else placement
        for placement in dtensor_spec(tensor).placements
    ]
    whole_shape, local_shape = list(view.shape), shard_sizes(tensor, view.shape)
    whole_shape[axis] = local_shape[axis] = 1
    return zeros_on_mesh(tensor, placements, whole_shape, local_shape, dtype)


def zeros_on_mesh(
    tensor: Tensor,
    placements: Sequence[Any],
    whole_shape: Sequence[int],
    local_shape: Sequence[int],
    dtype: torch.dtype,
) -> Tensor:
    """Return zeros as a DTensor on the mesh of a DTensor, with other placements and shapes."""
    from torch.distributed.tensor import DTensor

    zeros: Tensor = DTensor.from_local(
        torch.zeros(local_shape, dtype=dtype, device=tensor.device),
        dtensor_spec(tensor).mesh,
        placements,
        run_check=False,
        shape=torch.Size(whole_shape),
        stride=torch.empty(whole_shape, device="meta").stride(),
    )
    return zeros


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
