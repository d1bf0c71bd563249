"""The order of different blocks' accesses to global memory, which atomic instructions make.

An atomic instruction with release publishes what its thread did before, and what other threads of
its block did before the last barrier. An atomic instruction with acquire, at the same address and
later, learns all that was published there. What its thread does afterwards, and what other threads
of its block do after the next barrier, happens after that.

The source of facts is the PTX ISA, chapter "Memory Consistency Model" (sections "Release and
Acquire Patterns", "Observation Order", "Causality Order") and the instruction "atom".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ptx.accesses import Touches

Integers = NDArray[np.int64]


class Atomic(NamedTuple):
    """An atomic instruction of a thread."""

    thread: int
    barriers: int  # of the block, before it
    known: Integers  # for each block, how many of its atomic instructions happened before


class BlockOrder:
    """The atomic instructions of a launch, block by block."""

    def __init__(self, num_blocks: int) -> None:
        self._nothing = np.zeros(num_blocks, np.int64)
        self._atomics: dict[int, list[Atomic]] = defaultdict(list)
        self._published: dict[int, Integers] = {}  # by address

    def add(
        self, block: int, thread: int, barriers: int, address: int, acquires: bool, releases: bool
    ) -> None:
        """Record the next atomic instruction of a block; calls come in the order of execution."""
        atomics = self._atomics[block]
        known = atomics[-1].known if atomics else self._nothing
        if acquires:
            known = np.maximum(known, self._published.get(address, self._nothing))
        atomics.append(Atomic(thread, barriers, known))
        if releases:
            published = np.maximum(known, self._published.get(address, self._nothing))
            published[block] = len(atomics)
            self._published[address] = published

    def first_unordered(self, touches: Touches, threads: int) -> tuple[int, int] | None:
        """Return the indices of two conflicting touches of different blocks that are unordered."""
        kept = _touched_by_several(touches.piece, touches.lane // threads)
        if not len(kept):
            return None
        touches = touches.at(kept)
        blocks, in_block = np.divmod(touches.lane, threads)
        actors = {atomic.thread for atomics in self._atomics.values() for atomic in atomics}
        actor = np.where(np.isin(in_block, [*actors]), in_block, -1)
        arguments = np.column_stack((blocks, actor, touches.barriers, touches.atomics))
        different, inverse = np.unique(arguments, axis=0, return_inverse=True)
        times = np.array([self._time(*each) for each in different.tolist()], np.int64)
        published_by, learnt = times[inverse.reshape(-1)].T
        rows = np.column_stack(
            (touches.piece, blocks, published_by, learnt, touches.stores, touches.is_atomic)
        )
        unique, index = np.unique(rows, axis=0, return_index=True)
        pair = self._first_unordered_pair(unique)
        return None if pair is None else (int(kept[index[pair[0]]]), int(kept[index[pair[1]]]))

    def _time(self, block: int, thread: int, barriers: int, executed: int) -> tuple[int, int]:
        """Return when a thread makes an access, by the atomic instructions of its block.

        The first number is the index of the atomic instruction that publishes the access. The
        second number is how many atomic instructions have happened before the access.
        """
        atomics = self._atomics[block]
        publishing = bisect_right(atomics, barriers, key=lambda each: each.barriers)
        happened = bisect_left(atomics, barriers, key=lambda each: each.barriers)
        own = [i for i, each in enumerate(atomics) if each.thread == thread]
        publishing = min([publishing, *(i for i in own if i >= executed)])
        happened = max([happened, *(i + 1 for i in own if i < executed)])
        return publishing, happened

    def _first_unordered_pair(self, rows: Integers) -> tuple[int, int] | None:
        """Return two conflicting rows (piece, block, published by, learnt, stores, is atomic)."""
        piece, block, published_by, learnt, stores, is_atomic = rows.T
        before, times = np.unique(np.column_stack((block, learnt)), axis=0, return_inverse=True)
        known = np.array(
            [self._atomics[b][n - 1].known if n else self._nothing for b, n in before.tolist()]
        )
        times = times.reshape(-1)
        for distance in range(1, int(np.unique(piece, return_counts=True)[1].max())):
            x, y = slice(None, -distance), slice(distance, None)
            conflict = (piece[x] == piece[y]) & (block[x] != block[y])
            conflict &= (stores[x] | stores[y]).astype(np.bool_)
            conflict &= ~(is_atomic[x] & is_atomic[y]).astype(np.bool_)
            conflict &= known[times[y], block[x]] <= published_by[x]
            conflict &= known[times[x], block[y]] <= published_by[y]
            if conflict.any():
                first = int(np.flatnonzero(conflict)[0])
                return first, first + distance
        return None


def _touched_by_several(pieces: Integers, blocks: Integers) -> Integers:
    """Return the indices of the touches of pieces that several blocks touch."""
    if not len(pieces):
        return pieces
    owner = np.full(int(pieces.max()) + 1, -1)
    owner[pieces] = blocks
    has_several = np.zeros(len(owner), np.bool_)
    has_several[pieces[owner[pieces] != blocks]] = True
    return np.flatnonzero(has_several[pieces])
