"""Copies from global to shared memory that end when the thread waits for them: `cp.async`.

A copy may take place at any time between its instruction and the wait. Here it takes place at the
wait; until then, a load of its target is a fault, as of memory to which nothing was stored.

The source of facts is the PTX ISA, section "Data Movement and Conversion Instructions:
Non-bulk copy".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx.decode import Decoder
from ptx.faults import Unsupported
from ptx.memory_instructions import Places, Space
from ptx.number_formats import BITS, Lanes
from ptx.program import Immediate, Instruction
from ptx.wave import Step, Wave


class Copy(NamedTuple):
    """A copy of some bytes by each lane; all arrays have an entry for each lane of the wave."""

    target: Space
    addresses: Lanes  # of the targets
    words: NDArray[np.uint32]  # what is copied, shape [lanes, words]
    is_made: NDArray[np.bool_]  # by which lanes

    def of_lanes(self, lanes: NDArray[np.bool_]) -> Copy:
        """Return the copy of a part of the lanes."""
        return self._replace(
            addresses=self.addresses[lanes], words=self.words[lanes], is_made=self.is_made[lanes]
        )

    def finish(self, wave: Wave) -> None:
        """Store the words."""
        lanes = np.flatnonzero(self.is_made)
        places = Places(lanes, self.addresses[lanes])
        self.target.check(wave, places, 4 * self.words.shape[1], stores=True, atomic=False)
        for word in range(self.words.shape[1]):
            part = Places(lanes, places.addresses + 4 * word)
            self.target.store(wave, part, self.words[lanes, word])


def decode_async(decoder: Decoder, instruction: Instruction) -> Step:
    """Decode `cp.async`, `cp.async.commit_group` and `cp.async.wait_group`."""
    name = instruction.name
    if name == "cp.async.commit_group" and not instruction.guard:
        return lambda wave: wave.copies.append([])
    if name == "cp.async.wait_group" and not instruction.guard:
        (count,) = instruction.operands
        assert isinstance(count, Immediate)
        return _wait(count.value)
    if name not in ("cp.async.cg.shared.global", "cp.async.ca.shared.global"):
        raise Unsupported(f"the instruction {name}")
    return _copy(decoder, instruction)


def _copy(decoder: Decoder, instruction: Instruction) -> Step:
    target, source, size, *source_size = instruction.operands
    if not isinstance(size, Immediate) or size.value not in (4, 8, 16):
        raise Unsupported(f"the operands of {instruction.text}")
    number = decoder.number_of(instruction)
    shared, memory = Space(decoder, number, "shared"), Space(decoder, number, "global")
    target_of, source_of = shared.addresses(target), memory.addresses(source)
    read_size = decoder.read(source_size[0] if source_size else size, "u32")
    mask, count = decoder.mask(instruction), size.value // 4

    def copy(wave: Wave) -> None:
        made = mask(wave)
        is_made = np.ones(len(wave.all_lanes), np.bool_) if made is None else made
        sizes = np.broadcast_to(read_size(wave), wave.all_lanes.shape)
        if not np.isin(sizes[is_made], (0, size.value)).all():
            raise Unsupported("a copy of a part of its bytes")
        words = np.zeros((len(wave.all_lanes), count), BITS[4])
        lanes = np.flatnonzero(is_made & (sizes > 0))  # the others store zeros
        places = Places(lanes, source_of(wave)[lanes])
        memory.check(wave, places, size.value, stores=False, atomic=False)
        for word in range(count):
            part = Places(lanes, places.addresses + np.uint64(4 * word))
            words[lanes, word] = memory.load(wave, part, 4)
        addresses, lanes = target_of(wave), np.flatnonzero(is_made)
        shared.check(wave, Places(lanes, addresses[lanes]), size.value, stores=True, atomic=False)
        shared.forget(wave, Places(lanes, addresses[lanes]), size.value)
        wave.copies[-1].append(Copy(shared, addresses, words, is_made))

    return copy


def _wait(remaining: int) -> Step:
    """Return a step that finishes all committed groups but the last ones."""

    def wait(wave: Wave) -> None:
        *committed, open_group = wave.copies
        finished = committed[: len(committed) - remaining] if remaining else committed
        for group in finished:
            for each in group:
                each.finish(wave)
        wave.copies = [*committed[len(finished) :], open_group]

    return wait
