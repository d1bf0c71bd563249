"""The blocks that run together: their registers and shared memory, as NumPy arrays of lanes.

All blocks of a wave have taken the same way through the kernel so far. A lane is one thread of one
block; lane `i * threads + t` is thread t of the wave's i-th block. Where blocks go different ways,
the wave is split. So an instruction costs one NumPy call for many blocks.

The source of facts is the PTX ISA, sections "Thread Hierarchy" and "Special Registers".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx.accesses import AccessLog
from ptx.block_order import BlockOrder
from ptx.memory import Memory
from ptx.number_formats import BITS, Lanes

if TYPE_CHECKING:
    from ptx.async_copies import Copy

WARP = 32
UNDEFINED = 0xA5A5A5A5A5A5A5A5
"""The bits of a register, and of shared memory, before anything is written there."""


class LaunchState(NamedTuple):
    """The memory and the log that all blocks of a launch share."""

    arguments: Sequence[int | float]
    memory: Memory
    global_log: AccessLog
    shared_log: AccessLog
    order: BlockOrder


class Division(NamedTuple):
    """A branch at which threads of one block went different ways."""

    meeting: int  # index of the instruction where they meet again
    together: NDArray[np.bool_] | None  # the lanes that were active before
    waiting: list[tuple[int, NDArray[np.bool_]]]  # the way that comes next: its start and its lanes


class Wave:
    """Blocks that execute the same instruction.

    Args:
        launch: What they share with all blocks.
        blocks: The index of each block in the grid, shape [blocks].
        threads: The number of threads of a block.
        register_sizes: The size of each register in bytes.
        shared_size: The size of a block's shared memory in bytes.
        local_size: The size of a thread's own memory in bytes.
    """

    def __init__(
        self,
        launch: LaunchState,
        blocks: NDArray[np.int64],
        threads: int,
        register_sizes: Sequence[int],
        shared_size: int,
        local_size: int = 0,
    ) -> None:
        self.launch, self.threads = launch, threads
        self._register_sizes = register_sizes
        self.registers: list[Lanes | None] = [None] * len(register_sizes)
        self.position = 0  # of the next instruction
        self.barriers = 0  # that all threads of a block have passed
        self.warp_barriers = 0  # that all threads of a warp have passed
        self.atomics = 0  # that each block has executed
        self.active: NDArray[np.bool_] | None = None  # a mask of lanes; None for all
        self.copies: list[list[Copy]] = [[]]  # on their way, in groups; the last group is open
        self.divisions: list[Division] = []  # from outer to inner
        self.split_off: list[Wave] = []  # waves of blocks that went another way
        self.shared_size, self.shared_pitch = shared_size, -(-shared_size // 16) * 16
        self.shared = np.full((len(blocks), self.shared_pitch), UNDEFINED & 0xFF, np.uint8)
        self.is_shared_written = np.zeros((len(blocks), self.shared_pitch), np.bool_)
        self.local = np.zeros((len(blocks) * threads, -(-local_size // 16) * 16), np.uint8)
        self._set_blocks(blocks)

    def _set_blocks(self, blocks: NDArray[np.int64]) -> None:
        self.blocks = blocks
        self.all_lanes = np.arange(len(blocks) * self.threads)
        self.block_of_lane = np.repeat(blocks, self.threads)
        self.thread_of_lane = np.tile(np.arange(self.threads), len(blocks))
        self.row_of_lane = np.repeat(np.arange(len(blocks)), self.threads)

    def read(self, index: int) -> Lanes:
        """Return the bits of a register; those of an undefined register have a fixed pattern."""
        value = self.registers[index]
        if value is None:
            size = self._register_sizes[index]
            return np.full(len(self.all_lanes), UNDEFINED & (2 ** (8 * size) - 1), BITS[size])
        return value

    def write(self, index: int, value: Lanes, mask: NDArray[np.bool_] | None) -> None:
        """Write the bits of a register, or only those of the lanes of a mask."""
        if value.ndim == 0:
            value = np.full(len(self.all_lanes), value)
        if mask is not None:
            value = np.where(mask, value, self.read(index))
        self.registers[index] = value

    def by_block(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values of all lanes in the shape [blocks, threads]."""
        return values.reshape(len(self.blocks), self.threads)

    def divide(self, meeting: int, target: int, leaving: NDArray[np.bool_]) -> None:
        """Let a mask of lanes go to a target, after the other lanes have come to the meeting."""
        self.divisions.append(Division(meeting, self.active, [(target, leaving)]))
        self.active = ~leaving if self.active is None else self.active & ~leaving

    def rejoin(self) -> None:
        """At a meeting, take the other way, or let all lanes go on together."""
        division = self.divisions[-1]
        if division.waiting:
            self.position, self.active = division.waiting.pop()
        else:
            self.active = self.divisions.pop().together

    def split(self, leaves: NDArray[np.bool_]) -> Wave:
        """Take blocks, chosen by a mask of shape [blocks], out of this wave, into a new one."""
        assert not self.divisions
        other, remaining = self._part(leaves), self._part(~leaves)
        remaining.split_off = [*self.split_off, other]
        vars(self).update(vars(remaining))
        return other

    def _part(self, rows: NDArray[np.bool_]) -> Wave:
        part = copy(self)
        lanes = np.repeat(rows, self.threads)
        part.registers = [None if each is None else each[lanes] for each in self.registers]
        part.shared, part.is_shared_written = self.shared[rows], self.is_shared_written[rows]
        part._set_blocks(self.blocks[rows])
        part.local = self.local[lanes]
        part.copies = [[each.of_lanes(lanes) for each in group] for group in self.copies]
        part.divisions, part.split_off = [], []
        return part


Step = Callable[[Wave], None]
"""An instruction, ready to be executed."""
