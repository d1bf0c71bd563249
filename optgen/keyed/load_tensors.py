"""Pair the plain tensors of a state tensor, shard by shard, with those of the tensor to load."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from optgen.keyed.errors import Refused
from optgen.keyed.torch_private import is_dtensor, is_sharded_tensor

Path = tuple[Any, ...]  # the name of a parameter, then keys into its state


@dataclass(frozen=True)
class TensorCopy:
    """A tensor to write, and the tensor to copy into it."""

    target: Tensor
    source: Tensor

    def write(self) -> None:
        """Copy. A shard gets the source's shape, and a sparse tensor its number of sparse axes."""
        if self.target.is_sparse:
            self._match_sparse_axes()
        elif self.target.shape != self.source.shape:
            self.target.resize_(self.source.shape)
        self.target.copy_(self.source)  # not into detach(): a sparse alias has its own memory

    def _match_sparse_axes(self) -> None:
        """Make as many axes sparse as the source has, because copying does not."""
        axes = self.source.sparse_dim()
        if self.target.sparse_dim() != axes:
            self.target.sparse_resize_and_clear_(self.source.shape, axes, self.source.dense_dim())


def path_text(path: Path) -> str:
    """Return the path of an entry for error messages: a list in JSON."""
    return json.dumps(path, default=str)


def type_name(value: object) -> str:
    """Return "ShardedTensor", "DTensor" or "Tensor"; for other values, the name of the type."""
    if is_sharded_tensor(value):
        return "ShardedTensor"
    if is_dtensor(value):
        return "DTensor"
    return "Tensor" if isinstance(value, Tensor) else type(value).__name__


def tensor_copies(current: Any, new: Any, path: Path) -> list[TensorCopy]:
    """Pair the plain tensors of this rank that two tensors consist of, without copying yet.

    Neither this function nor the copying uses collectives, so an error on one rank does not make
    other ranks wait.

    Raises:
        ValueError: The tensors differ in type, number of shards, shape, layout or placement; or
            only the new one is complex.
    """
    if type_name(current) != type_name(new):
        raise Refused(
            f"Different kind: {type_name(current)} vs {type_name(new)} "
            f"for the path of {path_text(path)}"
        )
    if is_sharded_tensor(current):
        current_shards = [shard.tensor for shard in current.local_shards()]
        new_shards = [shard.tensor for shard in new.local_shards()]
        return _shard_copies(current_shards, new_shards, path, fixed_shape=False)
    if is_dtensor(current):
        return _dtensor_copies(current, new, path)
    return [_pair(current, new, path)]


def _dtensor_copies(current: Any, new: Any, path: Path) -> list[TensorCopy]:
    current_local, new_local = current.to_local(), new.to_local()
    has_shards = hasattr(current_local, "local_shards")  # of torchrec's LocalShardsWrapper
    if has_shards != hasattr(new_local, "local_shards"):
        kinds = f"{type(current_local).__name__} vs {type(new_local).__name__}"
        raise Refused(f"Different kind: DTensor of {kinds} for the path of {path_text(path)}")
    if has_shards:
        return _shard_copies(current_local.local_shards(), new_local.local_shards(), path)
    _require_equal("shape", current.shape, new.shape, path)
    current_mesh, new_mesh = current.device_mesh, new.device_mesh
    if current.placements != new.placements or not torch.equal(current_mesh.mesh, new_mesh.mesh):
        raise ValueError(
            f"Different placements: {current.placements} on {current_mesh} vs {new.placements} on "
            f"{new_mesh} for the path of {path_text(path)}; redistribute what is to be loaded, "
            "on all ranks"
        )
    return [_pair(current_local, new_local, path)]


def _shard_copies(
    current: Sequence[Tensor], new: Sequence[Tensor], path: Path, fixed_shape: bool = True
) -> list[TensorCopy]:
    if len(current) != len(new):
        counts = f"{len(current)} vs {len(new)}"
        raise ValueError(f"Different number of shards {counts} for the path of {path_text(path)}")
    pairs = zip(current, new, strict=True)
    return [_pair(old_shard, new_shard, path, fixed_shape) for old_shard, new_shard in pairs]


def _pair(current: Tensor, new: Tensor, path: Path, fixed_shape: bool = True) -> TensorCopy:
    if fixed_shape:
        _require_equal("shape", current.shape, new.shape, path)
    if new.is_sparse and not current.is_sparse:  # torch's SGD has sparse momentum, ours has not
        new = new.to_dense()
    _require_equal("layout", current.layout, new.layout, path)
    if new.is_complex() and not current.is_complex():
        _require_equal("dtype", current.dtype, new.dtype, path)
    return TensorCopy(current, new)


def _require_equal(property_name: str, current: object, new: object, path: Path) -> None:
    if current != new:
        raise ValueError(
            f"Different {property_name}: {current} vs {new} for the path of {path_text(path)}"
        )
