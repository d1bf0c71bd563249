"""Global memory: the host memory of the tensors that a kernel may touch, and nothing else.

The source of facts is the PTX ISA, section "Addresses as Operands": an access must be aligned to
its size.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptx.faults import Fault
from ptx.number_formats import BITS, Lanes

_FIRST_ADDRESS = 16
_BYTES = np.frombuffer(
    (ctypes.c_uint8 * (2**47 - 2 * _FIRST_ADDRESS)).from_address(_FIRST_ADDRESS), np.uint8
)
_WORDS = {size: _BYTES[: len(_BYTES) // size * size].view(dtype) for size, dtype in BITS.items()}
"""All addresses of this process as one array, by the size of a word. Only checked ones are used."""


class Memory:
    """The ranges of addresses that kernels may access."""

    def __init__(self) -> None:
        self._ranges: dict[tuple[int, int], str] = {}
        self._starts = self._ends = self._firsts = np.zeros(0, np.uint64)

    def allow(self, address: int, size: int, name: str) -> None:
        """Allow accesses to `size` bytes from an address; messages call them by the name."""
        if size:
            self._ranges[address, address + size] = name
            self._starts = np.zeros(0, np.uint64)

    def _arrange(self) -> None:
        """Sort the ranges, and join those that overlap."""
        joined: list[list[int]] = []
        for start, end in sorted(self._ranges):
            if joined and start < joined[-1][1]:
                joined[-1][1] = max(end, joined[-1][1])
            else:
                joined.append([start, end])
        self._starts, self._ends = np.array(joined, np.uint64).reshape(-1, 2).T
        sizes = self._ends - self._starts
        self._firsts = np.cumsum(sizes) - sizes

    def places(self, addresses: NDArray[np.uint64], size: int) -> NDArray[np.int64]:
        """Return where bytes at these addresses are in all allowed memory, numbered from 0.

        Raises:
            Fault: An address is not a multiple of the size, or outside of the allowed ranges.
        """
        if not len(self._starts):
            self._arrange()
        if (addresses & np.uint64(size - 1)).any():
            wrong = addresses[(addresses & np.uint64(size - 1)) != 0]
            raise Fault(f"{size} bytes at {int(wrong[0]):#x}, which is not aligned")
        index = np.searchsorted(self._starts, addresses, side="right") - 1
        is_inside = (index >= 0) & (addresses + np.uint64(size) <= self._ends[index])
        if not is_inside.all():
            address = int(addresses[~is_inside][0])
            raise Fault(f"{size} bytes at {address:#x}, {self._neighbour(address)}")
        return (addresses - self._starts[index] + self._firsts[index]).astype(np.int64)

    def contents(self) -> list[bytes]:
        """Return a copy of all bytes in the allowed ranges."""
        self._arrange()
        pairs = zip(self._starts.tolist(), self._ends.tolist(), strict=True)
        return [ctypes.string_at(start, end - start) for start, end in pairs]

    def restore(self, contents: list[bytes]) -> None:
        """Write a copy back that `contents` has made."""
        for start, copied in zip(self._starts.tolist(), contents, strict=True):
            ctypes.memmove(start, copied, len(copied))

    def name_of(self, place: int) -> str:
        """Return the name of the range with this place."""
        index = int(np.searchsorted(self._firsts, np.uint64(place), side="right")) - 1
        address = int(self._starts[index]) + place - int(self._firsts[index])
        names = {n: address - s for (s, e), n in self._ranges.items() if s <= address < e}
        return " = ".join(f"{name} + {offset}" for name, offset in names.items())

    def _neighbour(self, address: int) -> str:
        """Tell how far outside of the nearest range an address lies."""
        before = [
            (address - end, name) for (_, end), name in self._ranges.items() if end <= address
        ]
        after = [(start - address, n) for (start, _), n in self._ranges.items() if start > address]
        told = [f"{gap} bytes after the end of {name}" for gap, name in sorted(before)[:1]]
        told += [f"{gap} bytes before {name}" for gap, name in sorted(after)[:1]]
        return "outside of all tensors: " + " and ".join(told)


def load(addresses: NDArray[np.uint64], size: int) -> Lanes:
    """Return words of `size` bytes at addresses that `Memory.places` has accepted."""
    return _WORDS[size][(addresses - np.uint64(_FIRST_ADDRESS)) // np.uint64(size)]


def store(addresses: NDArray[np.uint64], values: NDArray[Any]) -> None:
    """Store words at addresses that `Memory.places` has accepted."""
    words = _WORDS[values.itemsize]
    words[(addresses - np.uint64(_FIRST_ADDRESS)) // np.uint64(values.itemsize)] = values
