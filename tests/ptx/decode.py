"""Turn the instructions of a program into functions of a wave, once for each program.

The source of facts is the PTX ISA, sections "Operand Size Exceeding Instruction-Type Size",
"Predicated Execution", "Control Flow Instructions" and "Parallel Synchronization and Communication
Instructions".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx import arithmetic
from ptx.conversions import conversion
from ptx.divergence import meeting_points
from ptx.faults import Fault, Unsupported
from ptx.number_formats import BITS, FORMATS, Format, Lanes, halves
from ptx.program import (
    Immediate,
    Instruction,
    Operand,
    Program,
    Register,
    SpecialRegister,
    Symbol,
    Vector,
)
from ptx.wave import Step, Wave

Read = Callable[[Wave], Lanes]
Write = Callable[[Wave, Lanes], None]
Mask = Callable[[Wave], NDArray[np.bool_] | None]

_MEANINGS = {
    "signed": arithmetic.INTEGER,
    "unsigned": arithmetic.INTEGER,
    "bits": arithmetic.INTEGER,
    "predicate": arithmetic.PREDICATE,
    "float": arithmetic.FLOAT,
    "bfloat": arithmetic.BFLOAT,
}


class Opcode(NamedTuple):
    """An instruction's name, taken apart."""

    stem: str  # without types, as "mul.wide"
    types: tuple[str, ...]  # as "s32"


def opcode(name: str) -> Opcode:
    """Take a name apart: the types are its last parts."""
    parts = name.split(".")
    first_type = len(parts)
    while first_type > 1 and parts[first_type - 1] in FORMATS:
        first_type -= 1
    return Opcode(".".join(parts[:first_type]), tuple(parts[first_type:]))


class Decoder:
    """Finds the registers of a program, and makes functions that read and write operands."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.indices = {name: index for index, name in enumerate(program.registers)}
        self.register_sizes = [FORMATS[kind].size for kind in program.registers.values()]
        self._numbers = {id(each): index for index, each in enumerate(program.instructions)}

    def number_of(self, instruction: Instruction) -> int:
        """Return the index of an instruction; equal instructions are told apart."""
        return self._numbers[id(instruction)]

    def size_of(self, register: Register) -> int:
        """Return the size of a register in bytes."""
        return self.register_sizes[self.indices[register.name]]

    def read(self, operand: Operand, kind: str) -> Read:
        """Return a function that reads an operand in a type: an array, or one number for all."""
        form = FORMATS[kind]
        if isinstance(operand, Register):
            return self._read_register(operand, form)
        if isinstance(operand, SpecialRegister):
            return _read_special(operand, form)
        if isinstance(operand, Symbol) and operand.name in self.program.memory_symbols:
            operand = Immediate(0)
        elif isinstance(operand, Symbol) and operand.name in self.program.constants:
            operand = Immediate(self.program.constants[operand.name].ctypes.data)
        if not isinstance(operand, Immediate):
            raise Unsupported(f"the operand {operand}")
        number = constant(operand, form)
        return lambda wave: number

    def _read_register(self, register: Register, form: Format) -> Read:
        index, size = self.indices[register.name], self.register_sizes[self.indices[register.name]]
        if form.kind == "predicate":
            return lambda wave: wave.read(index).view(np.bool_)
        if size == form.size:
            return lambda wave: wave.read(index).view(form.dtype)
        if size < form.size:
            raise Unsupported(f"{register.name} of {size} bytes as an operand of {form.size}")
        return lambda wave: wave.read(index).astype(BITS[form.size]).view(form.dtype)

    def write(self, operand: Operand, kind: str, mask: Mask) -> Write:
        """Return a function that writes a result; a wider register is filled with the sign or 0."""
        form = FORMATS[kind]
        if not isinstance(operand, Register):
            raise Unsupported(f"the result {operand}")
        if operand.name == "_":
            return lambda wave, value: None
        index, size = self.indices[operand.name], self.register_sizes[self.indices[operand.name]]
        if size < form.size:
            raise Unsupported(f"{operand.name} of {size} bytes as a result of {form.size}")
        wider = np.dtype(f"i{size}") if form.kind == "signed" else BITS[size]

        def write_bits(wave: Wave, value: Lanes) -> None:
            value = np.asarray(value)
            if value.dtype.itemsize != size:
                value = (
                    value.astype(wider)
                    if form.kind == "signed"
                    else value.view(BITS[value.dtype.itemsize]).astype(wider)
                )
            wave.write(index, value.view(BITS[size]), mask(wave))

        return write_bits

    def mask(self, instruction: Instruction) -> Mask:
        """Return a function that gives the lanes that execute an instruction; None for all."""
        guard = instruction.guard
        if guard is None:
            return lambda wave: wave.active
        read, negated = self.read(guard.register, "pred"), guard.negated

        def lanes(wave: Wave) -> NDArray[np.bool_]:
            chosen = ~read(wave) if negated else read(wave)
            return chosen if wave.active is None else chosen & wave.active

        return lanes


def constant(operand: Immediate, form: Format) -> Lanes:
    """Return a constant as a 0-dimensional array of a type."""
    if form.kind == "predicate":
        return np.array(operand.value != 0)
    if operand.float_bytes and operand.float_bytes != form.size:
        raise Unsupported(f"a constant of {operand.float_bytes} bytes as an operand of {form.size}")
    bits = operand.value & (2 ** (8 * form.size) - 1)
    return np.array(bits, BITS[form.size]).view(form.dtype)


def _read_special(operand: SpecialRegister, form: Format) -> Read:
    """Read the position of a thread; grids and blocks have one dimension here."""
    functions: dict[str, Callable[[Wave], Any]] = {
        "%tid.x": lambda wave: wave.thread_of_lane,
        "%ctaid.x": lambda wave: wave.block_of_lane,
        "%ntid.x": lambda wave: np.array(wave.threads),
        "%laneid": lambda wave: wave.thread_of_lane % 32,
        **{
            f"%{name}.{axis}": lambda wave: np.array(0)
            for name in ("tid", "ctaid")
            for axis in "yz"
        },
    }
    function = functions.get(operand.name)
    if function is None:
        raise Unsupported(f"the register {operand.name}")
    return lambda wave: function(wave).astype(form.dtype)


def decode_arithmetic(decoder: Decoder, instruction: Instruction) -> Step:
    """Decode an instruction that computes with registers only, by the tables of `arithmetic`."""
    stem, types = opcode(instruction.name)
    if len(types) != 1:
        raise Unsupported(f"the instruction {instruction.name}")
    kind = types[0]
    single = FORMATS[kind.removesuffix("x2")].kind
    meaning = _MEANINGS[single].get(stem)
    if meaning is None or (kind.endswith("x2") and stem in arithmetic.OPERAND_TYPES):
        raise Unsupported(f"the instruction {instruction.name}")
    if kind.endswith("x2"):
        meaning = _of_pairs(meaning, kind)
    wide = f"{kind[0]}{16 * FORMATS[kind].size}"
    target, *sources = instruction.operands
    names = arithmetic.OPERAND_TYPES.get(stem, ("",) * len(sources))
    types_of_sources = [{"": kind, "wide": wide}.get(name, name) for name in names]
    name_of_result = arithmetic.RESULT_TYPES.get(stem, "")
    result = {"": kind, "wide": wide}.get(name_of_result, name_of_result)
    reads = [decoder.read(*each) for each in zip(sources, types_of_sources, strict=True)]
    return _apply(meaning, reads, decoder.write(target, result, decoder.mask(instruction)))


def _of_pairs(meaning: Callable[..., Lanes], kind: str) -> Callable[..., Lanes]:
    """Return a function of pairs of 16 bits, half by half."""

    def of_pairs(*operands: Lanes) -> Lanes:
        results = np.ascontiguousarray(meaning(*(halves(each, kind) for each in operands)))
        return results.view(np.uint32).reshape(results.shape[:-1])

    return of_pairs


def _apply(meaning: Callable[..., Lanes], reads: list[Read], write: Write) -> Step:
    """Return a step that computes a result; small numbers of operands need no list."""
    if len(reads) == 1:
        (read_x,) = reads
        return lambda wave: write(wave, meaning(read_x(wave)))
    if len(reads) == 2:
        read_x, read_y = reads
        return lambda wave: write(wave, meaning(read_x(wave), read_y(wave)))
    return lambda wave: write(wave, meaning(*[read(wave) for read in reads]))


def decode_conversion(decoder: Decoder, instruction: Instruction) -> Step:
    """Decode `cvt`."""
    sources, target, meaning = conversion(instruction.name)
    result, *operands = instruction.operands
    reads = [decoder.read(*each) for each in zip(operands, sources, strict=True)]
    return _apply(meaning, reads, decoder.write(result, target, decoder.mask(instruction)))


def decode_comparison(decoder: Decoder, instruction: Instruction) -> Step:
    """Decode `setp`.

    A second result is the opposite of the first. For pairs it is the comparison of the upper half.
    """
    _, *comparisons = instruction.name.split(".")
    (name, kind) = comparisons if len(comparisons) == 2 else ("", "")
    single = kind.removesuffix("x2")
    is_float = single in FORMATS and FORMATS[single].kind in ("float", "bfloat")
    table = arithmetic.FLOAT_COMPARISONS if is_float else arithmetic.INTEGER_COMPARISONS
    if name not in table or kind not in FORMATS or len(instruction.operands) != 3:
        raise Unsupported(f"the instruction {instruction.name}")
    target, *sources = instruction.operands
    reads = [decoder.read(source, kind) for source in sources]
    mask, compare = decoder.mask(instruction), table[name]
    if FORMATS[single].kind == "bfloat":
        compare = arithmetic.of_bfloat16(compare)
    if not isinstance(target, Vector):
        if single != kind:
            raise Unsupported(f"the instruction {instruction.name} with one result")
        return _apply(compare, reads, decoder.write(target, "pred", mask))
    write, write_second = (decoder.write(each, "pred", mask) for each in target.parts)
    if single != kind:

        def compare_halves(x: Lanes, y: Lanes) -> Lanes:
            return np.asarray(compare(halves(x, kind), halves(y, kind)))

        def write_halves(wave: Wave, value: Lanes) -> None:
            write(wave, value[..., 0])
            write_second(wave, value[..., 1])

        return _apply(compare_halves, reads, write_halves)

    def write_both(wave: Wave, value: Lanes) -> None:
        write(wave, value)
        write_second(wave, ~value)

    return _apply(compare, reads, write_both)


def decode_move(decoder: Decoder, instruction: Instruction) -> Step:
    """Decode `mov`, which also takes a register apart, or makes one of parts."""
    target, source = instruction.operands
    kind = instruction.name.removeprefix("mov.")
    mask = decoder.mask(instruction)
    if isinstance(target, Vector):
        part = f"b{8 * FORMATS[kind].size // len(target.parts)}"
        read = decoder.read(source, kind)
        writes = [decoder.write(each, part, mask) for each in target.parts]
        dtype, count = FORMATS[part].dtype, len(writes)

        def take_apart(wave: Wave) -> None:
            parts = np.ascontiguousarray(read(wave)).view(dtype).reshape(-1, count)
            for write, column in zip(writes, parts.T, strict=True):
                write(wave, np.ascontiguousarray(column))

        return take_apart
    if isinstance(source, Vector):
        size = FORMATS[kind].size
        part = f"b{8 * size // len(source.parts)}"
        reads = [decoder.read(each, part) for each in source.parts]
        write = decoder.write(target, kind, mask)

        def join(wave: Wave) -> None:
            columns = np.broadcast_arrays(wave.all_lanes, *(read(wave) for read in reads))[1:]
            write(wave, np.stack(columns, axis=1).view(BITS[size]).reshape(-1))

        return join
    return decode_arithmetic(decoder, instruction)


def decode_branch(decoder: Decoder, instruction: Instruction) -> Step:
    """Decode `bra`: all threads of a block must go the same way."""
    (label,) = instruction.operands
    assert isinstance(label, Symbol)
    return _go_to(decoder, instruction, decoder.program.labels[label.name])


def decode_return(decoder: Decoder, instruction: Instruction) -> Step:
    """Decode `ret`."""
    return _go_to(decoder, instruction, len(decoder.program.instructions))


def _go_to(decoder: Decoder, instruction: Instruction, position: int) -> Step:
    """Return a step that goes to a position in the lanes that execute the instruction.

    Blocks that go whole, or not at all, become waves of their own. Other blocks are divided.
    """
    mask, number = decoder.mask(instruction), decoder.number_of(instruction)

    def go(wave: Wave) -> None:
        leaving = mask(wave)
        if leaving is None:
            wave.position = position
            return
        if wave.active is None:
            by_block = wave.by_block(leaving)
            all_leave, none_leave = by_block.all(axis=1), ~by_block.any(axis=1)
            if all_leave.all():
                wave.position = position
                return
            is_divided = ~(all_leave | none_leave)
            if all_leave.any():
                wave.split(all_leave).position = position
            if not is_divided.any():
                return
            is_divided = is_divided[~all_leave]
            divided = wave if is_divided.all() else wave.split(is_divided)
            leaving = by_block[~(all_leave | none_leave)].reshape(-1)
            divided.divide(meeting_points(decoder.program)[number], position, leaving)
        elif (leaving == wave.active).all():
            wave.position = position
        elif leaving.any():
            wave.divide(meeting_points(decoder.program)[number], position, leaving)

    return go


def decode_indexed_branch(decoder: Decoder, instruction: Instruction) -> Step:
    """Decode `brx.idx`: a branch to one of several labels."""
    index, targets = instruction.operands
    assert isinstance(targets, Symbol)
    labels = decoder.program.instructions[decoder.program.labels[targets.name]].operands
    positions = [decoder.program.labels[each.name] for each in labels if isinstance(each, Symbol)]
    read = decoder.read(index, "u32")

    def go(wave: Wave) -> None:
        if wave.active is not None:
            raise Unsupported("an indexed branch of some threads of a block")
        by_block = wave.by_block(np.broadcast_to(read(wave), wave.all_lanes.shape))
        if (by_block != by_block[:, :1]).any():
            raise Fault("threads of a block go different ways")
        chosen = by_block[:, 0]
        for choice in np.unique(chosen)[1:].tolist():
            wave.split(by_block[:, 0] == choice).position = positions[choice]
            by_block = by_block[by_block[:, 0] != choice]
        wave.position = positions[int(by_block[0, 0])]

    return go


def decode_barrier(decoder: Decoder, instruction: Instruction) -> Step:
    """Decode `bar.sync 0` and `bar.warp.sync -1`: all threads must execute them."""
    is_of_warp = instruction.name == "bar.warp.sync"
    expected = Immediate(-1) if is_of_warp else Immediate(0)
    if instruction.name not in ("bar.sync", "bar.warp.sync") or instruction.operands != (expected,):
        raise Unsupported(f"the barrier {instruction.text}")
    if instruction.guard is not None:
        raise Unsupported(f"the barrier {instruction.text}")

    def pass_barrier(wave: Wave) -> None:
        check_together(wave)
        wave.warp_barriers += is_of_warp
        wave.barriers += not is_of_warp

    return pass_barrier


def check_together(wave: Wave) -> None:
    """Raise a Fault if some threads of the wave's blocks have gone another way."""
    if wave.active is not None:
        active = wave.by_block(wave.active)[0]
        threads = np.flatnonzero(active)[:3].tolist()
        raise Fault(
            f"only {int(active.sum())} of {wave.threads} threads of block {wave.blocks[0]} get here"
            f" together ({threads}, …), where all threads must"
        )
