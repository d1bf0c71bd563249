"""Loads, stores and atomic additions: of arguments, global memory and shared memory.

The source of facts is the PTX ISA, sections "ld", "st", "atom", "Vectors as Operands" and
"Scopes and Applicability of the Memory Consistency Model".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx import memory
from ptx.accesses import Access
from ptx.decode import Decoder, Write, opcode
from ptx.faults import Fault, Unsupported
from ptx.number_formats import BITS, FORMATS, Lanes
from ptx.program import Address, Instruction, Operand, Register, Symbol, Vector
from ptx.wave import Step, Wave

_CACHE_HINTS = ("L1::evict_first", "L1::evict_last", "L1::evict_normal", "L1::no_allocate")
_SCOPES = ("cta", "gpu", "sys")


class Places(NamedTuple):
    """Checked addresses of some lanes."""

    lanes: NDArray[np.int64]  # the active lanes of the wave
    addresses: NDArray[Any]


class Space:
    """A memory space as instructions see it: checks, reads, writes and records accesses.

    Args:
        decoder: Finds registers.
        number: The index of the instruction.
        name: "global", "shared", or "local", the memory of a thread.
    """

    def __init__(self, decoder: Decoder, number: int, name: str) -> None:
        if name not in ("global", "shared", "local"):
            raise Unsupported(f"the memory space {name}")
        self._decoder, self._number, self._name = decoder, number, name

    def addresses(self, operand: Operand) -> Callable[[Wave], Lanes]:
        """Return a function that computes the address of every lane."""
        if not isinstance(operand, Address):
            raise Unsupported(f"the address {operand}")
        base, offset = operand
        kind = "u32" if self._name == "shared" else "u64"
        if self._name == "local" and isinstance(base, Register):
            kind = f"u{8 * self._decoder.size_of(base)}"
        read, dtype = self._decoder.read(base, kind), FORMATS[kind].dtype
        bits = 8 * FORMATS[kind].size
        distance = dtype(offset % 2**bits)
        return lambda wave: np.broadcast_to(read(wave) + distance, wave.all_lanes.shape)

    def check(self, wave: Wave, places: Places, size: int, stores: bool, atomic: bool) -> None:
        """Check an access of `size` bytes in some lanes, and record it.

        Raises:
            Fault: An address is out of bounds, or not aligned.
        """
        lanes, addresses = places
        if self._name == "global":
            numbers = wave.launch.memory.places(addresses, size)
            log = wave.launch.global_log
        else:
            limit = wave.shared_size if self._name == "shared" else wave.local.shape[1]
            inside = addresses.astype(np.int64)
            is_wrong = (inside + size > limit) | (inside % size != 0)
            if is_wrong.any():
                raise Fault(
                    f"{size} bytes at {inside[is_wrong][0]} of {self._name} memory, which has"
                    f" {limit} bytes: out of bounds, or not aligned"
                )
            if self._name == "local":
                return
            numbers = wave.block_of_lane[lanes] * wave.shared_pitch + inside
            log = wave.launch.shared_log
        threads = wave.block_of_lane[lanes] * wave.threads + wave.thread_of_lane[lanes]
        times = wave.barriers, wave.warp_barriers, wave.atomics
        log.add(Access(self._number, threads, numbers, size, stores, atomic, *times))

    def load(self, wave: Wave, places: Places, size: int) -> Lanes:
        """Load words of `size` bytes from checked addresses."""
        if self._name == "global":
            return memory.load(places.addresses, size)
        words, is_written = self._words(wave, size)
        index = self._index(wave, places, size)
        if is_written is not None and not is_written[index].all():
            raise Fault("a load from shared memory to which nothing was stored")
        loaded: Lanes = words[index]
        return loaded

    def store(self, wave: Wave, places: Places, values: Lanes) -> None:
        """Store words to checked addresses."""
        if self._name == "global":
            memory.store(places.addresses, values)
            return
        size = values.itemsize
        words, is_written = self._words(wave, size)
        index = self._index(wave, places, size)
        words[index] = values
        if is_written is not None:
            is_written[index] = BITS[size](int.from_bytes(b"\1" * size, "little"))

    def forget(self, wave: Wave, places: Places, size: int) -> None:
        """Make loads of bytes at checked addresses of shared memory faults, until a store."""
        starts = self._index(wave, places, 1)
        wave.is_shared_written.reshape(-1)[starts[:, None] + np.arange(size)] = False

    def _words(self, wave: Wave, size: int) -> tuple[Lanes, Lanes | None]:
        """Return the words of shared or local memory, and whether each byte was stored to."""
        if self._name == "local":
            return wave.local.view(BITS[size]).reshape(-1), None
        arrays = wave.shared, wave.is_shared_written
        words, is_written = (array.view(BITS[size]).reshape(-1) for array in arrays)
        return words, is_written

    def _index(self, wave: Wave, places: Places, size: int) -> NDArray[np.int64]:
        """Return the index of words in the memory of all blocks, or of all threads."""
        lanes, addresses = places
        if self._name == "local":
            starts = lanes * wave.local.shape[1]
        else:
            starts = wave.row_of_lane[lanes] * wave.shared_pitch
        index: NDArray[np.int64] = (starts + addresses.astype(np.int64)) // size
        return index


class _Transfer(NamedTuple):
    """The modifiers of a load or store."""

    space: str
    count: int  # of registers
    kind: str


def _transfer(instruction: Instruction) -> _Transfer:
    stem, types = opcode(instruction.name)
    _, space, *modifiers = stem.split(".")
    hints = (*_CACHE_HINTS, "nc")  # of memory that nothing writes
    known = {"v2": 2, "v4": 4, "v8": 8, **dict.fromkeys(hints, 1)}
    if len(types) != 1 or not set(modifiers) <= set(known):
        raise Unsupported(f"the instruction {instruction.name}")
    count = max([1, *(known[each] for each in modifiers)])
    return _Transfer(space, count, types[0])


def decode_load(decoder: Decoder, instruction: Instruction) -> Step:
    """Decode `ld`."""
    space, count, kind = _transfer(instruction)
    target, source = instruction.operands[:2]
    targets = target.parts if isinstance(target, Vector) else (target,)
    if len(targets) != count:
        raise Unsupported(f"{len(targets)} registers for {count} numbers")
    if space == "param":
        return _load_argument(decoder, instruction, kind)
    number = decoder.number_of(instruction)
    spaces = Space(decoder, number, space)
    address_of = spaces.addresses(source)
    mask = decoder.mask(instruction)
    writes: list[Write] = [decoder.write(each, kind, mask) for each in targets]
    form = FORMATS[kind]

    def load(wave: Wave) -> None:
        places = _active(wave, mask(wave), address_of(wave))
        spaces.check(wave, places, form.size * count, stores=False, atomic=False)
        for index, write in enumerate(writes):
            part = Places(places.lanes, places.addresses + index * form.size)
            loaded = spaces.load(wave, part, form.size)
            if len(loaded) < len(wave.all_lanes):
                values = np.zeros(len(wave.all_lanes), loaded.dtype)
                values[places.lanes] = loaded
                loaded = values
            write(wave, loaded.view(form.dtype))

    return load


def _load_argument(decoder: Decoder, instruction: Instruction, kind: str) -> Step:
    target, source = instruction.operands
    if not (isinstance(source, Address) and isinstance(source.base, Symbol) and not source.offset):
        raise Unsupported(f"the argument {source}")
    if source.base.name not in decoder.program.parameters:
        raise Unsupported("the result of a call")
    position = [*decoder.program.parameters].index(source.base.name)
    form = FORMATS[kind]
    write = decoder.write(target, kind, decoder.mask(instruction))

    def load(wave: Wave) -> None:
        value = wave.launch.arguments[position]
        if form.kind == "float" or isinstance(value, float):
            bits = np.array(value, FORMATS[f"f{8 * form.size}"].dtype)
        else:
            bits = np.array(value % 2 ** (8 * form.size), BITS[form.size])
        write(wave, bits.view(form.dtype))

    return load


def decode_store(decoder: Decoder, instruction: Instruction) -> Step:
    """Decode `st`."""
    space, count, kind = _transfer(instruction)
    target, source = instruction.operands[:2]
    sources = source.parts if isinstance(source, Vector) else (source,)
    if len(sources) != count:
        raise Unsupported(f"{len(sources)} registers for {count} numbers")
    number = decoder.number_of(instruction)
    spaces = Space(decoder, number, space)
    address_of = spaces.addresses(target)
    mask = decoder.mask(instruction)
    form = FORMATS[kind]
    reads = [decoder.read(each, f"b{8 * form.size}") for each in sources]

    def store(wave: Wave) -> None:
        places = _active(wave, mask(wave), address_of(wave))
        spaces.check(wave, places, form.size * count, stores=True, atomic=False)
        for index, read in enumerate(reads):
            part = Places(places.lanes, places.addresses + index * form.size)
            values = np.broadcast_to(read(wave), wave.all_lanes.shape)
            values = values[places.lanes]
            spaces.store(wave, part, values)
            if (spaces.load(wave, part, form.size) != values).any():
                raise Fault("two threads store different numbers to one place")

    return store


def decode_atomic(decoder: Decoder, instruction: Instruction) -> Step:
    """Decode `atom.global.….add`, which returns the old value; lanes take turns in their order."""
    _, space, *modifiers = opcode(instruction.name).stem.split(".")
    (kind,) = opcode(instruction.name).types
    order = [each for each in modifiers if each not in (*_SCOPES, "add")]
    scope = [each for each in modifiers if each in _SCOPES]
    if space != "global" or "add" not in modifiers or FORMATS[kind].kind == "float":
        raise Unsupported(f"the instruction {instruction.name}")
    if order not in ([], ["relaxed"], ["acquire"], ["release"], ["acq_rel"]):
        raise Unsupported(f"the instruction {instruction.name}")
    reaches_others = scope in (["gpu"], ["sys"])  # without a scope, PTX means gpu, and relaxed
    acquires = reaches_others and order in (["acquire"], ["acq_rel"])
    releases = reaches_others and order in (["release"], ["acq_rel"])
    target, source, addend = instruction.operands
    spaces = Space(decoder, decoder.number_of(instruction), "global")
    address_of, mask = spaces.addresses(source), decoder.mask(instruction)
    read, write = decoder.read(addend, kind), decoder.write(target, kind, mask)
    form = FORMATS[kind]

    def add(wave: Wave) -> None:
        lanes, addresses = places = _active(wave, mask(wave), address_of(wave))
        spaces.check(wave, places, form.size, stores=True, atomic=True)
        addends = np.broadcast_to(read(wave), wave.all_lanes.shape)
        old_values = np.zeros(len(wave.all_lanes), form.dtype)
        for lane, address in zip(lanes.tolist(), addresses, strict=True):
            at = np.array([address])
            old_values[lane] = memory.load(at, form.size).view(form.dtype)[0]
            memory.store(at, old_values[lane : lane + 1] + addends[lane])
            block, thread = int(wave.block_of_lane[lane]), int(wave.thread_of_lane[lane])
            wave.launch.order.add(block, thread, wave.barriers, int(address), acquires, releases)
        counts = np.bincount(wave.row_of_lane[lanes], minlength=len(wave.blocks))
        if (counts != counts[0]).any():
            raise Unsupported("an atomic instruction that not all blocks execute equally often")
        wave.atomics += int(counts[0])
        write(wave, old_values)

    return add


def _active(wave: Wave, mask: NDArray[np.bool_] | None, addresses: Lanes) -> Places:
    if mask is None:
        return Places(wave.all_lanes, addresses)
    lanes = np.flatnonzero(mask)
    return Places(lanes, addresses[lanes])
