"""Complete values of rows and columns over the ranks that hold pieces of the same matrices.

Each rank writes its part among zeros, and one all_reduce on the device adds up all parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from optgen.runtime.fused_triton.held_matrices import Lines
from optgen.runtime.sharded.reductions import PartialReduction

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Values(NamedTuple):
    """Values of the lines of one tensor's matrices."""

    target: Tensor  # [..., line] of whole matrices
    lines: Lines
    groups: tuple[ProcessGroup, ...]  # of the ranks whose parts are combined
    is_maximum: bool = False  # parts are combined to their maximum, not their sum


class LineExchange:
    """Values of lines of several tensors, and the memory in which ranks combine them."""

    def __init__(self, values: Sequence[Values]) -> None:
        self._targets = [each.target for each in values]
        self._rooms: list[Tensor] = []
        self._held: list[Tensor] = []
        keys = [(each.groups, each.is_maximum) for each in values]
        buffers = {
            key: torch.empty(
                sum(v.target.numel() for v, k in zip(values, keys, strict=True) if k == key),
                dtype=torch.float64,
                device=values[0].target.device,
            )
            for key in dict.fromkeys(keys)
        }
        self._requests = [PartialReduction(buffer, *key) for key, buffer in buffers.items()]
        used = dict.fromkeys(keys, 0)
        for each, key in zip(values, keys, strict=True):
            size = each.target.numel()
            room = buffers[key][used[key] :][:size].view(each.target.shape)
            used[key] += size
            self._rooms.append(room)
            self._held.append(each.lines.held(room))

    def request(self, parts: Sequence[Tensor]) -> list[PartialReduction]:
        """Return requests to combine this rank's parts, in the order of the values."""
        for request in self._requests:
            request.tensor.zero_()
        copy_all(self._held, parts)
        return [request for request in self._requests if request.groups and request.tensor.numel()]

    def finish(self) -> None:
        """Store the completed values in their targets."""
        copy_all(self._targets, self._rooms)


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source to its target, which may have another dtype and other axes."""
    filled = [k for k, target in enumerate(targets) if target.numel()]
    if filled:
        torch._foreach_copy_(
            [targets[k] for k in filled],
            [sources[k].reshape(targets[k].shape) for k in filled],
        )
