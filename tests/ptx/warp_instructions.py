"""Instructions that the 32 threads of a warp execute together: shuffles, and those of matrices.

The source of facts is the PTX ISA, sections "shfl.sync", "redux.sync", "ldmatrix", "stmatrix"
and "Matrix Fragments for mma.m16n8k16 with floating point type".
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ptx.decode import Decoder, Read, Write, check_together
from ptx.faults import Fault, Unsupported
from ptx.memory_instructions import Places, Space
from ptx.number_formats import FORMATS, Lanes, widen_bfloat16
from ptx.program import Address, Immediate, Instruction, Operand, Vector
from ptx.wave import WARP, Step, Wave

_SHUFFLES: dict[str, Callable[[Lanes, Lanes, Lanes], Lanes]] = {
    "bfly": lambda lane, distance, _: lane ^ distance,
    "down": lambda lane, distance, _: lane + distance,
    "up": lambda lane, distance, _: lane - distance,
    "idx": lambda lane, source, mask: (lane & mask) | (source & ~mask),
}


def decode_shuffle(decoder: Decoder, instruction: Instruction) -> Step:
    """Decode `shfl.sync`: each lane gets a number of another lane of its warp."""
    _, sync, mode, kind = (instruction.name.split(".") + [""] * 4)[:4]
    if sync != "sync" or mode not in _SHUFFLES or kind != "b32" or instruction.guard:
        raise Unsupported(f"the instruction {instruction.name}")
    target, source, distance, clamp, members = instruction.operands
    if members != Immediate(-1) or not isinstance(clamp, Immediate):
        raise Unsupported(f"the operands of {instruction.text}")
    mask, last = clamp.value >> 8 & 31, clamp.value & 31
    read, read_distance = decoder.read(source, "b32"), decoder.read(distance, "s32")
    write = decoder.write(target, "b32", decoder.mask(instruction))
    function = _SHUFFLES[mode]

    def shuffle(wave: Wave) -> None:
        check_together(wave)
        lane = wave.thread_of_lane % WARP
        chosen = function(lane, read_distance(wave) & 31, mask)
        end = (lane & mask) | (last & ~mask)
        is_inside = chosen >= end if mode == "up" else chosen <= end
        chosen = np.where(is_inside, chosen, lane)
        values = np.broadcast_to(read(wave), wave.all_lanes.shape)
        write(wave, values[wave.all_lanes - lane + chosen])

    return shuffle


_REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add,
    "and": np.bitwise_and,
    "max": np.maximum,
    "min": np.minimum,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def decode_reduction(decoder: Decoder, instruction: Instruction) -> Step:
    """Decode `redux.sync`: all lanes of a warp get the sum, or the like, of their numbers."""
    _, sync, name, kind = (instruction.name.split(".") + [""] * 4)[:4]
    target, source, members = instruction.operands
    if sync != "sync" or name not in _REDUCTIONS or kind not in FORMATS or instruction.guard:
        raise Unsupported(f"the instruction {instruction.name}")
    read, read_members = decoder.read(source, kind), decoder.read(members, "b32")
    write = decoder.write(target, kind, decoder.mask(instruction))
    function = _REDUCTIONS[name]

    def reduce(wave: Wave) -> None:
        check_together(wave)
        if (read_members(wave) != 0xFFFFFFFF).any():
            raise Unsupported("a reduction of some lanes of a warp")
        values = np.broadcast_to(read(wave), wave.all_lanes.shape).reshape(-1, WARP)
        write(wave, np.repeat(function.reduce(values, axis=1, dtype=values.dtype), WARP))

    return reduce


class _Matrices:
    """The operands of `ldmatrix` and `stmatrix`.

    Thread l of a warp holds, of each matrix, 2 numbers of 16 bits: those of row l // 4, columns
    2 (l % 4) and the next; if transposed, of column l // 4 and these rows. The address of row r of
    matrix k is that of thread 8 k + r.
    """

    def __init__(self, decoder: Decoder, instruction: Instruction, address: Operand) -> None:
        parts = instruction.name.split(".")
        counts = [int(part[1:]) for part in parts if part in ("x1", "x2", "x4")]
        known = {"sync", "aligned", "m8n8", "shared", "b16", "trans", f"x{counts[0]}"}
        if not set(parts[1:]) <= known or instruction.guard or not isinstance(address, Address):
            raise Unsupported(f"the instruction {instruction.name}")
        self.count, self._is_transposed = counts[0], "trans" in parts
        self.space = Space(decoder, decoder.number_of(instruction), "shared")
        self._address_of = self.space.addresses(address)

    def places(self, wave: Wave) -> list[list[Places]]:
        """Return, for each matrix, the places of a lane's two numbers."""
        check_together(wave)
        warps = self._address_of(wave).astype(np.int64).reshape(-1, WARP)
        if (warps[:, : 8 * self.count] % 16).any():
            raise Fault("a row of a matrix at an address that is no multiple of 16 bytes")
        lane = wave.thread_of_lane % WARP
        warp = np.arange(len(lane)) // WARP
        line, pair = lane // 4, lane % 4
        matrices = []
        for matrix in range(self.count):
            numbers = []
            for second in (0, 1):
                row, column = line, 2 * pair + second
                if self._is_transposed:
                    row, column = column, row
                addresses = warps[warp, 8 * matrix + row] + 2 * column
                numbers.append(Places(wave.all_lanes, addresses))
            matrices.append(numbers)
        return matrices


def decode_load_matrix(decoder: Decoder, instruction: Instruction) -> Step:
    """Decode `ldmatrix`."""
    target, address = instruction.operands
    matrices = _Matrices(decoder, instruction, address)
    if not isinstance(target, Vector) or len(target.parts) != matrices.count:
        raise Unsupported(f"the operand {target}")
    mask = decoder.mask(instruction)
    writes: list[Write] = [decoder.write(each, "b32", mask) for each in target.parts]

    def load(wave: Wave) -> None:
        for write, places in zip(writes, matrices.places(wave), strict=True):
            numbers = []
            for each in places:
                matrices.space.check(wave, each, 2, stores=False, atomic=False)
                numbers.append(matrices.space.load(wave, each, 2))
            write(wave, np.stack(numbers, axis=1).view(np.uint32).reshape(-1))

    return load


def decode_store_matrix(decoder: Decoder, instruction: Instruction) -> Step:
    """Decode `stmatrix`."""
    address, source = instruction.operands
    matrices = _Matrices(decoder, instruction, address)
    if not isinstance(source, Vector) or len(source.parts) != matrices.count:
        raise Unsupported(f"the operand {source}")
    reads: list[Read] = [decoder.read(each, "b32") for each in source.parts]

    def store(wave: Wave) -> None:
        for read, places in zip(reads, matrices.places(wave), strict=True):
            pair = np.array(np.broadcast_to(read(wave), wave.all_lanes.shape)).view(np.uint16)
            for index, each in enumerate(places):
                matrices.space.check(wave, each, 2, stores=True, atomic=False)
                matrices.space.store(wave, each, pair[index::2])

    return store


def decode_product(decoder: Decoder, instruction: Instruction) -> Step:
    """Decode `mma.m16n8k16`: add the product of a 16 x 16 and a 16 x 8 matrix to a third one.

    PTX does not say how a sum is rounded. Here it is rounded once, to float32.
    """
    prefix = "mma.sync.aligned.m16n8k16.row.col.f32."
    kind = instruction.name.removeprefix(prefix).split(".")[0]
    if instruction.name != f"{prefix}{kind}.{kind}.f32" or kind not in ("bf16", "f16"):
        raise Unsupported(f"the instruction {instruction.name}")
    parts = [each.parts for each in instruction.operands if isinstance(each, Vector)]
    if [len(each) for each in parts] != [4, 4, 2, 4] or instruction.guard:
        raise Unsupported(f"the operands of {instruction.text}")
    target, left, right, addend = parts
    mask = decoder.mask(instruction)
    writes = [decoder.write(each, "f32", mask) for each in target]
    read_left, read_right = ([decoder.read(each, "b32") for each in part] for part in (left, right))
    read_addend = [decoder.read(each, "f32") for each in addend]

    def multiply(wave: Wave) -> None:
        check_together(wave)
        factors = [_fragments(wave, reads, kind) for reads in (read_left, read_right)]
        # Registers of the left factor: rows r and r + 8, then the same of columns c + 8.
        a = factors[0].reshape(-1, 8, 4, 2, 2, 2).transpose(0, 4, 1, 3, 2, 5).reshape(-1, 16, 16)
        b = factors[1].reshape(-1, 8, 4, 2, 2).transpose(0, 3, 2, 4, 1).reshape(-1, 16, 8)
        product = (a @ b).reshape(-1, 2, 8, 4, 2).transpose(1, 4, 0, 2, 3).reshape(4, -1)
        for write, read, each in zip(writes, read_addend, product, strict=True):
            write(wave, (read(wave) + each).astype(np.float32))

    return multiply


def _fragments(wave: Wave, reads: list[Read], kind: str) -> NDArray[np.float64]:
    """Return the numbers that each lane of each warp has, shape [lane, register, 2]."""
    bits = [np.broadcast_to(read(wave), wave.all_lanes.shape) for read in reads]
    pairs = np.stack(bits, axis=1).view(np.uint16)
    numbers = widen_bfloat16(pairs) if kind == "bf16" else pairs.view(np.float16)
    return numbers.astype(np.float64).reshape(len(wave.all_lanes), len(reads), 2)
