"""Create the tables that fused Triton kernels read on the device.

Kernels find all tensors through one int64 table [row, tensor]. Its rows are:

* for each tensor, its element count, the index of its first block, and the index of its param
  group;
* the addresses of the streams: parameter, gradient, then one per state that is not a scalar;
* the addresses of the scalars: step, then scalar states;
* for each state that the rule calls `fresh` on, a 1 while it is unused; a kernel that uses the
  state writes a 0 there;
* the addresses of extra tensors that exist for one step only.

An int32 array maps a block to its tensor, and a float64 table [group, value] holds the
hyperparameters.

A copy to the device goes through new pinned memory from torch's allocator, never through a buffer
that an earlier copy may still be reading. Under graph capture, tables lie in a `GraphMemory`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.fused_triton.graph_memory import GraphMemory
from optgen.runtime.rule import NONE, Rule

Hyper = float | Tensor

HEADER = 3
"""Rows before the streams: element counts, first blocks, groups."""


def allocate(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, memory: GraphMemory | None
) -> Tensor:
    """Return device memory to upload numbers to; `memory` is that of a capture, if there is one."""
    if memory is not None:
        return memory.allocate(shape, dtype, device)
    return torch.empty(*shape, dtype=dtype, device=device)


def upload(target: Tensor, values: array[Any], memory: GraphMemory | None) -> None:
    """Copy numbers into a device tensor without waiting; `memory` is that of `allocate`."""
    source = torch.frombuffer(values, dtype=target.dtype)
    if target.ndim > 1:
        source = source.view(target.shape)
    if memory is not None:
        memory.write(target, source)
        return
    if target.is_cuda:
        source = source.pin_memory()
    target.copy_(source, non_blocking=True)


class Table:
    """Table of the tensors of one launch; rows of addresses are uploaded if one has changed.

    Args:
        numels: The number of elements of each tensor.
        block_counts: The number of blocks of each tensor.
        group_indices: The index of each tensor's param group.
        fresh: For each state that the rule calls `fresh` on, a flag per tensor.
        num_address_rows: How many rows hold the addresses of streams and scalars.
        device: The device of the table.
        graph_memory: The memory of a graph capture; None outside one.
        num_extra_rows: How many rows hold the addresses of tensors that exist for one step only.
    """

    def __init__(
        self,
        numels: Sequence[int],
        block_counts: Sequence[int],
        group_indices: Iterable[int],
        fresh: Iterable[Sequence[bool]],
        num_address_rows: int,
        device: torch.device,
        graph_memory: GraphMemory | None,
        num_extra_rows: int = 0,
    ) -> None:
        self.numels = numels
        first_blocks = list(accumulate(block_counts, initial=0))
        self.num_tensors = len(numels)
        self.blocks = first_blocks.pop()
        self._graph_memory = graph_memory
        zeros = array("q", [0] * self.num_tensors)
        rows = [array("q", numels), array("q", first_blocks), array("q", group_indices)]
        rows += [*[zeros] * num_address_rows, *(array("q", map(int, flags)) for flags in fresh)]
        self._uploaded = dict.fromkeys(range(HEADER, HEADER + num_address_rows), zeros.tobytes())
        self._pieces: dict[tuple[int, int], Tensor] = {}  # by the first row and the end
        self._first_extra = len(rows)
        rows += [zeros] * num_extra_rows
        flat = array("q")
        for row in rows:
            flat.extend(row)
        self.memory = allocate((len(rows), self.num_tensors), torch.int64, device, graph_memory)
        upload(self.memory, flat, graph_memory)
        self.tensor_of_block = allocate((self.blocks,), torch.int32, device, graph_memory)
        if self.blocks:
            tensor_of_block = array("i")
            for tensor, count in enumerate(block_counts):
                tensor_of_block.extend([tensor] * count)
            upload(self.tensor_of_block, tensor_of_block, graph_memory)

    def write_addresses(self, streams: Sequence[Sequence[Tensor]]) -> None:
        """Write the addresses of these streams into the table; an empty stream keeps address 0."""
        self.write_rows({HEADER + i: _addresses(each) for i, each in enumerate(streams) if each})

    def write_extra_addresses(self, index: int, addresses: array[int]) -> None:
        """Write the addresses of tensors into one of the extra rows."""
        self.write_rows({self._first_extra + index: addresses})

    def write_rows(self, rows: Mapping[int, array[int]]) -> None:
        """Upload rows of addresses that have changed in one piece, with the rows between them."""
        # Compared as bytes, which is ten times as fast.
        numbers = {index: row.tobytes() for index, row in rows.items()}
        changed = [i for i, each in numbers.items() if each != self._uploaded.get(i)]
        if not changed:
            return
        self._uploaded |= numbers
        first, end = min(changed), max(changed) + 1
        piece = self._pieces.get((first, end))
        if piece is None:
            piece = self._pieces[first, end] = self.memory[first:end].view(-1)
        row_bytes = b"".join([self._uploaded[index] for index in range(first, end)])
        upload(piece, array("q", row_bytes), self._graph_memory)


def _addresses(tensors: Sequence[Tensor]) -> array[int]:
    return array("q", map(Tensor.data_ptr, tensors))


class Hypers:
    """Hyperparameters on the device, in float64: a row per group, None as NONE, flags as 0 or 1."""

    def __init__(
        self,
        num_groups: int,
        num_hypers: int,
        device: torch.device,
        graph_memory: GraphMemory | None,
    ) -> None:
        self.values = allocate((num_groups, num_hypers), torch.float64, device, graph_memory)
        self._slots = self.values.view(-1).unbind()
        self._graph_memory = graph_memory
        self._uploaded = array("d")

    def set(self, values: Sequence[Hyper]) -> None:
        """Upload numbers if one has changed; copy tensors within the device, in replays too."""
        numbers, slots, tensors = array("d"), [], []
        for slot, value in zip(self._slots, values, strict=True):
            if isinstance(value, Tensor) and value.device == self.values.device:
                slots.append(slot)
                tensors.append(value.detach().reshape(()))
                numbers.append(-0.0)  # not 0.0: a later number 0.0 must differ, and be uploaded
            else:
                numbers.append(float(value))
        # Compared as bytes, a NaN equals itself, and differs from the NaN that is NONE.
        if numbers.tobytes() != self._uploaded.tobytes():
            upload(self.values, numbers, self._graph_memory)
            self._uploaded = numbers
        if tensors:
            torch._foreach_copy_(slots, tensors)


def flatten(group: dict[str, Any], rule: Rule) -> list[Hyper]:
    """Return a group's hyperparameters in the rule's order; tuples are flattened, None is NONE."""
    values: list[Hyper] = []
    for value in rule.choices_as_indices(rule.hyper_values(group)):
        for item in value if isinstance(value, (tuple, list)) else (value,):
            values.append(NONE if item is None else item)
    return values
