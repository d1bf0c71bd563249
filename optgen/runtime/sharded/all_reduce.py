"""Complete partial reductions of a step over the ranks, in few all_reduce collectives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True, eq=False)
class PartialReduction:
    """A reduction of this rank's shard; each group's ranks must still combine their results."""

    tensor: Tensor  # completed in place
    groups: tuple[ProcessGroup, ...]
    is_maximum: bool = False  # the ranks' values are combined to their maximum, not their sum


def batched_all_reduce(partials: Iterable[PartialReduction]) -> None:
    """Complete partial reductions in place, by one all_reduce for each group and operation.

    Every rank of a group must call this with equally many tensors of equal shapes, in the same
    order, whatever the sizes of its shards. The ranks' values are added up in float64, even where
    a rank computed its own value in float32.
    """
    batches: dict[tuple[ProcessGroup, bool], list[Tensor]] = {}
    for partial in partials:
        for group in partial.groups:
            batches.setdefault((group, partial.is_maximum), []).append(partial.tensor)
    for (group, is_maximum), tensors in batches.items():
        flat = torch.cat([tensor.reshape(-1).double() for tensor in tensors])
        _reduce_to_maximum(flat, group) if is_maximum else distributed.all_reduce(flat, group=group)
        _copy_from_flat(tensors, flat)


def _copy_from_flat(tensors: Sequence[Tensor], flat: Tensor) -> None:
    """Copy each tensor's range of a flat tensor of any dtype to the tensor, in place."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))


def _reduce_to_maximum(flat: Tensor, group: ProcessGroup) -> None:
    """Replace each magnitude by the greatest of all ranks; by NaN where any rank has NaN.

    A single process computes NaN in this case too. The MAX of a collective library does not
    ensure NaN: whether NaN wins depends on the order in which the library compares the ranks.
    """
    is_nan = flat.isnan()
    rows = torch.stack([flat.masked_fill(is_nan, 0.0), is_nan.double()])
    distributed.all_reduce(rows, distributed.ReduceOp.MAX, group=group)
    flat.copy_(rows[0].masked_fill_(rows[1] > 0, torch.nan))
