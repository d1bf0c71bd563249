"""Memory for the tables of a captured step: one node of the graph brings all of them to the device.

Addresses and numbers are constants of a graph, but a copy from the host that was captured reads the
host's memory again at every replay. So all tables of a capture share one piece of host memory, one
piece of device memory, and one copy, which precedes all kernels. The host may write into its piece
until the capture ends: for example the address of a tensor that an operation of the step returns.
After that it stays as it is, and alive, for as long as the graph may be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

_ALIGNMENT = 256
"""Alignment of tables in bytes, as torch's allocator gives it."""


class GraphMemory:
    """Memory of one capture, on the host and on the devices.

    `capacity` is an estimate of the bytes that all tables of a device need, and `reserve` of those
    of them that are made after the first `flush`. If they are too small, the graph gets more than
    one copy.
    """

    def __init__(self, capacity: int, reserve: int = 0) -> None:
        self._capacity, self._reserve = capacity + reserve, reserve
        self._chunks: list[_Chunk] = []

    def allocate(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory on a device for a table; it holds zeros until `write`."""
        size = prod(shape) * dtype.itemsize
        last = next((each for each in reversed(self._chunks) if each.device == device), None)
        if last is None or not last.has_room(size):
            last = _Chunk(device, max(size, self._capacity))
            self._chunks.append(last)
        return last.allocate(size).view(dtype).view(tuple(shape))

    def write(self, target: Tensor, numbers: Tensor) -> None:
        """Write numbers into the host's twin of a tensor that lies in this memory."""
        chunk = next(each for each in self._chunks if each.holds(target))
        chunk.write(target, numbers)

    def flush(self) -> None:
        """Let the graph copy to the devices what was allocated since the last call."""
        for chunk in self._chunks:
            chunk.flush(self._reserve)


class _Chunk:
    """A piece of device memory, and its twin on the host; on the CPU they are one."""

    def __init__(self, device: torch.device, size: int) -> None:
        self.device, self._used, self._flushed = device, 0, 0
        self._memory = torch.empty(size, dtype=torch.uint8, device=device)
        self._host = self._memory
        if device.type != "cpu":
            self._host = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def has_room(self, size: int) -> bool:
        return self._used + size <= self._memory.numel()

    def allocate(self, size: int) -> Tensor:
        first, last = self._used, self._used + size
        self._host[first:last].zero_()
        self._used = min(-(-last // _ALIGNMENT) * _ALIGNMENT, self._memory.numel())
        return self._memory[first:last]

    def holds(self, tensor: Tensor) -> bool:
        """Tell whether a tensor lies in this piece."""
        return tensor.untyped_storage().data_ptr() == self._memory.untyped_storage().data_ptr()

    def write(self, target: Tensor, numbers: Tensor) -> None:
        first = target.storage_offset() * target.itemsize
        source = numbers.view(-1).view(torch.uint8)
        self._host[first : first + source.numel()].copy_(source)

    def flush(self, reserve: int) -> None:
        """Copy what has been allocated since the last call, and some bytes more."""
        if self._used <= self._flushed:
            return
        end = min(self._used + reserve, self._memory.numel())
        new = slice(self._flushed, end)
        if self._host is not self._memory:
            self._memory[new].copy_(self._host[new], non_blocking=True)
        self._flushed = end
