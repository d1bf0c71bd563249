"""Sums of which every rank has a part: one collective completes all that a step has of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    """A tensor that is complete when all ranks of each group have put their values together."""

    tensor: Tensor  # completed in place
    groups: tuple[ProcessGroup, ...]
    largest: bool = False  # the greatest of the ranks' values instead of their sum


def complete(partials: Iterable[Partial]) -> None:
    """Complete these tensors by one all_reduce for each group and operation.

    Every rank of the groups must come here with equally many tensors of equal shapes, in the same
    order, whatever part of the parameters it holds. What was added up in float32 is added up over
    the ranks in float64.
    """
    batches: dict[tuple[ProcessGroup, bool], list[Tensor]] = {}
    for partial in partials:
        for group in partial.groups:
            batches.setdefault((group, partial.largest), []).append(partial.tensor)
    for (group, largest), tensors in batches.items():
        flat = torch.cat([tensor.reshape(-1).double() for tensor in tensors])
        _keep_largest(flat, group) if largest else distributed.all_reduce(flat, group=group)
        put_back(tensors, flat)


def put_back(tensors: Sequence[Tensor], flat: Tensor) -> None:
    """Copy to each tensor, in place, what stands in its stead in a flat one of any dtype."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))


def _keep_largest(flat: Tensor, group: ProcessGroup) -> None:
    """The greatest magnitude; what is not a number on any rank is none, as in one process.

    Whether a backend's maximum lets a NaN pass depends on the order in which it meets the ranks.
    """
    unknown = flat.isnan()
    both = torch.stack([flat.masked_fill(unknown, 0.0), unknown.double()])
    distributed.all_reduce(both, distributed.ReduceOp.MAX, group=group)
    flat.copy_(both[0].masked_fill_(both[1] > 0, torch.nan))
