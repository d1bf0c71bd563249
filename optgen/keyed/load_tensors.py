"""What one tensor of a state and the one to load for it are made of: pairs of plain tensors."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from optgen.keyed.errors import Refused
from optgen.keyed.torch_private import is_dtensor, is_sharded_tensor

Path = tuple[Any, ...]  # the parameter's name, then the keys of its state


@dataclass(frozen=True)
class TensorCopy:
    """A tensor to write, and what to write into it."""

    target: Tensor
    source: Tensor

    def write(self) -> None:
        """Write; what is given decides the shape of a shard, and which axes are sparse."""
        if self.target.is_sparse:
            self._take_axes()
        elif self.target.shape != self.source.shape:
            self.target.resize_(self.source.shape)
        self.target.copy_(self.source)  # itself: a sparse tensor's memory is not its alias's

    def _take_axes(self) -> None:
        """Have the same axes sparse as the source, which copying does not see to."""
        axes = self.source.sparse_dim()
        if self.target.sparse_dim() != axes:
            self.target.sparse_resize_and_clear_(self.source.shape, axes, self.source.dense_dim())


def path_text(path: Path) -> str:
    """The path of an entry, as error messages give it: a list in JSON."""
    return json.dumps(path, default=str)


def kind(value: object) -> str:
    """The kind of a tensor; of anything else, its type."""
    if is_sharded_tensor(value):
        return "ShardedTensor"
    if is_dtensor(value):
        return "DTensor"
    return "Tensor" if isinstance(value, Tensor) else type(value).__name__


def copies(current: Any, new: Any, path: Path) -> list[TensorCopy]:
    """Pair the tensors that make up two of one kind, this rank's; none of them is touched.

    Nothing here, nor the copying, takes part in a collective: a rank that refuses what it is given
    leaves no other waiting.

    Raises:
        ValueError: The two differ in kind, shards, shape, layout or placement, or the new one is
            complex and the current one is not.
    """
    if kind(current) != kind(new):
        raise Refused(
            f"Different kind: {kind(current)} vs {kind(new)} for the path of {path_text(path)}"
        )
    if is_sharded_tensor(current):
        olds = [shard.tensor for shard in current.local_shards()]
        news = [shard.tensor for shard in new.local_shards()]
        return _shards(olds, news, path, fixed=False)
    if is_dtensor(current):
        return _of_dtensors(current, new, path)
    return [_pair(current, new, path)]


def _of_dtensors(current: Any, new: Any, path: Path) -> list[TensorCopy]:
    old, local = current.to_local(), new.to_local()
    wrapped = [hasattr(each, "local_shards") for each in (old, local)]
    if wrapped[0] != wrapped[1]:
        kinds = f"{type(old).__name__} vs {type(local).__name__}"
        raise Refused(f"Different kind: DTensor of {kinds} for the path of {path_text(path)}")
    if wrapped[0]:
        return _shards(old.local_shards(), local.local_shards(), path)
    _equal("shape", current.shape, new.shape, path)
    old_mesh, new_mesh = current.device_mesh, new.device_mesh
    if current.placements != new.placements or not torch.equal(old_mesh.mesh, new_mesh.mesh):
        raise ValueError(
            f"Different placements: {current.placements} on {old_mesh} vs {new.placements} on "
            f"{new_mesh} for the path of {path_text(path)}; redistribute what is to be loaded, "
            "on all ranks"
        )
    return [_pair(old, local, path)]


def _shards(
    olds: Sequence[Tensor], news: Sequence[Tensor], path: Path, fixed: bool = True
) -> list[TensorCopy]:
    if len(olds) != len(news):
        counts = f"{len(olds)} vs {len(news)}"
        raise ValueError(f"Different number of shards {counts} for the path of {path_text(path)}")
    return [_pair(old, new, path, fixed) for old, new in zip(olds, news, strict=True)]


def _pair(current: Tensor, new: Tensor, path: Path, fixed: bool = True) -> TensorCopy:
    if fixed:
        _equal("shape", current.shape, new.shape, path)
    if new.is_sparse and not current.is_sparse:  # torch's SGD has sparse momentum, ours has not
        new = new.to_dense()
    _equal("layout", current.layout, new.layout, path)
    if new.is_complex() and not current.is_complex():
        _equal("dtype", current.dtype, new.dtype, path)
    return TensorCopy(current, new)


def _equal(what: str, current: object, new: object, path: Path) -> None:
    if current != new:
        raise ValueError(f"Different {what}: {current} vs {new} for the path of {path_text(path)}")
