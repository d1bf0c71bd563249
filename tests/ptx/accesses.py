"""The accesses of a launch to memory, and the search for those that nothing orders.

Two accesses of one byte conflict if different threads make them, one of them stores, and not both
are atomic. One must happen before the other:

* in a block, a barrier between them orders them (`bar.sync`); in a warp, `bar.warp.sync` does, too;
* in a warp, a load comes before a later store: the threads of a warp issue an instruction together,
  because no branch divides them (PTX does not promise this; all GPUs so far do it);
* one instruction may store one number to one place in several threads, which the store checks;
* between blocks, see `block_order.py`.

It does not matter in which order this run made the accesses: all pairs are searched, so a conflict
is found even if this order was harmless.

The source of facts is the PTX ISA, chapter "Memory Consistency Model" (sections "Conflict and
Data-races", "Causality Order"), and the instructions "bar" and "bar.warp.sync".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx.block_order import BlockOrder
from ptx.faults import Fault

WARP = 32
Integers = NDArray[np.int64]


class Access(NamedTuple):
    """The accesses of an instruction in some lanes, which have passed equally many barriers."""

    instruction: int
    lanes: Integers  # block * threads + thread
    places: Integers  # of the first byte; those of shared memory are different for each block
    size: int  # bytes from each place
    stores: bool
    is_atomic: bool
    barriers: int
    warp_barriers: int
    atomics: int  # of the block, before this access


class Touches(NamedTuple):
    """The touched pieces of memory, one entry for each piece and lane; all fields are columns."""

    piece: Integers
    lane: Integers
    access: Integers  # index of the Access
    stores: NDArray[np.bool_]
    is_atomic: NDArray[np.bool_]
    barriers: Integers
    warp_barriers: Integers
    atomics: Integers

    def at(self, index: NDArray[Any]) -> Touches:
        """Return the entries at an index or in a mask."""
        return Touches(*(column[index] for column in self))


class AccessLog:
    """The accesses of a launch to global memory, or to the shared memory of its blocks."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._accesses: list[Access] = []

    def add(self, access: Access) -> None:
        """Record an access."""
        if len(access.lanes):
            self._accesses.append(access)

    def check(
        self, order: BlockOrder, describe: Callable[[int], str], name_of: Callable[[int], str]
    ) -> None:
        """Search for conflicting accesses that nothing orders.

        Args:
            order: What orders accesses of different blocks.
            describe: Describes an instruction by its index.
            name_of: Names a place in memory.

        Raises:
            Fault: There are such accesses; the message names two.
        """
        if not self._accesses:
            return
        granule = min(access.size for access in self._accesses)
        touches = _shared_pieces(self._accesses, granule)
        pair = self._unordered_in_block(touches)
        reason = "and no barrier is between the two"
        if pair is None:
            pair = order.first_unordered(touches, self._threads)
            reason = "and no release and acquire are between the two"
        if pair is None:
            return
        told = []
        for index in pair:
            block, thread = divmod(int(touches.lane[index]), self._threads)
            verb = "stores to" if touches.stores[index] else "loads from"
            instruction = self._accesses[touches.access[index]].instruction
            told.append(f"thread {thread} of block {block} {verb} it: {describe(instruction)}")
        place = name_of(int(touches.piece[pair[0]]) * granule)
        raise Fault(f"a race at {place}: {told[0]}; {told[1]}; {reason}")

    def _unordered_in_block(self, touches: Touches) -> tuple[int, int] | None:
        """Return two touches by threads of one block that no barrier orders."""
        warp = touches.lane // WARP
        per_barrier = (touches.piece, touches.lane // self._threads, touches.barriers)
        pair = _first_conflict(per_barrier, warp, touches, is_in_order=False)
        if pair is None:
            per_warp_barrier = (*per_barrier, warp, touches.warp_barriers)
            pair = _first_conflict(per_warp_barrier, touches.lane, touches, is_in_order=True)
        return pair


def _shared_pieces(accesses: list[Access], granule: int) -> Touches:
    """Return the touches of pieces that several lanes touch, and at least one stores to."""
    pieces = [
        (access.places[:, None] + np.arange(0, access.size, granule)) // granule
        for access in accesses
    ]
    num_pieces = max(int(each.max()) for each in pieces) + 1
    owner = np.full(num_pieces, -1)
    for access, piece in zip(accesses, pieces, strict=True):
        owner[piece] = access.lanes[:, None]
    is_shared, is_stored = np.zeros((2, num_pieces), np.bool_)
    for access, piece in zip(accesses, pieces, strict=True):
        is_shared[piece[owner[piece] != access.lanes[:, None]]] = True
        if access.stores:
            is_stored[piece] = True
    is_shared &= is_stored
    columns: list[tuple[NDArray[Any], ...]] = []
    for number, (access, piece) in enumerate(zip(accesses, pieces, strict=True)):
        row, column = np.nonzero(is_shared[piece])
        if len(row):
            same = (number, access.stores, access.is_atomic, *access[-3:])
            constants = (np.full(len(row), value) for value in same)
            columns.append((piece[row, column], access.lanes[row], *constants))
    if not columns:
        return Touches(*(np.zeros(0, np.int64) for _ in Touches._fields))
    return Touches(*map(np.concatenate, zip(*columns, strict=True)))


def _first_conflict(
    keys: tuple[Integers, ...], actors: Integers, touches: Touches, is_in_order: bool
) -> tuple[int, int] | None:
    """Return two conflicting touches with equal keys and different actors.

    If actors go in order, a load conflicts with earlier stores only.
    """
    if not len(actors):
        return None
    order = np.lexsort(keys)
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    starts = np.flatnonzero(is_first)
    actor, access = actors[order], touches.access[order]
    several = np.minimum.reduceat(actor, starts) != np.maximum.reduceat(actor, starts)
    several &= np.minimum.reduceat(access, starts) != np.maximum.reduceat(access, starts)
    stored = np.logical_or.reduceat(touches.stores[order], starts)
    ends = np.append(starts[1:], len(order))
    for group in np.flatnonzero(several & stored):
        members = order[starts[group] : ends[group]]
        for store in members[touches.stores[members]]:
            both_atomic = touches.is_atomic[members] & touches.is_atomic[store]
            distance = touches.access[members] - touches.access[store]
            conflicts = (actors[members] != actors[store]) & ~both_atomic
            conflicts &= distance > 0 if is_in_order else distance != 0
            if conflicts.any():
                return int(store), int(members[conflicts][0])
    return None
