"""The table of instructions: what decodes each of them, by the first part of its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from ptx import async_copies as copies
from ptx import decode as registers
from ptx import memory_instructions as memory
from ptx import warp_instructions as warp
from ptx.decode import Decoder
from ptx.faults import Unsupported
from ptx.program import Instruction, Program
from ptx.wave import Step, Wave

INSTRUCTIONS: Mapping[str, Callable[[Decoder, Instruction], Step]] = {
    "atom": memory.decode_atomic,
    "bar": registers.decode_barrier,
    "bra": registers.decode_branch,
    "branchtargets": lambda decoder, instruction: lambda wave: None,
    "brx": registers.decode_indexed_branch,
    "cp": copies.decode_async,
    "cvt": registers.decode_conversion,
    "cvta": registers.decode_arithmetic,
    "ld": memory.decode_load,
    "ldmatrix": warp.decode_load_matrix,
    "mma": warp.decode_product,
    "mov": registers.decode_move,
    "redux": warp.decode_reduction,
    "ret": registers.decode_return,
    "setp": registers.decode_comparison,
    "shfl": warp.decode_shuffle,
    "st": memory.decode_store,
    "stmatrix": warp.decode_store_matrix,
}
"""Those of `arithmetic.INTEGER`, `PREDICATE` and `FLOAT` are decoded by their tables instead."""


@lru_cache(maxsize=256)
def decode(program: Program) -> tuple[list[Step], list[int]]:
    """Return a program's instructions as functions, and the sizes of its registers in bytes.

    An instruction that the interpreter does not know raises `Unsupported` when it is executed:
    NVIDIA's functions have ways for extreme numbers that no test takes.
    """
    decoder = Decoder(program)
    return [_step(decoder, each) for each in program.instructions], decoder.register_sizes


def _step(decoder: Decoder, instruction: Instruction) -> Step:
    first = instruction.name.split(".")[0]
    try:
        return INSTRUCTIONS.get(first, registers.decode_arithmetic)(decoder, instruction)
    except Unsupported as error:
        message = f"{error}, in {decoder.program.name}: {instruction.text}"

    def refuse(wave: Wave) -> None:
        raise Unsupported(message)

    return refuse
