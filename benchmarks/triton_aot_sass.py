"""Follow the fast path of a kernel through its machine code (SASS), and count its clock cycles.

The fast path takes whole, aligned blocks. It is the shortest path, loops taken once, with all of a
block's loads of several elements. Instructions issue in order. An instruction waits for its
operands, which are ready after fixed latencies. These are rough figures for an H100, in clock
cycles.
"""

from __future__ import annotations

import math
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import triton

FROM_MEMORY, FROM_CACHE = 850, 280
"""Latencies of loads: of the first touch of data under load, and of tables in the L2 cache."""
LATENCIES = (  # by the beginning of an instruction's name; the first that fits
    (("LDC", "ULDC"), 40),
    (("LDS",), 30),
    (("SHFL",), 24),
    (("MUFU.RCP64H", "MUFU.RSQ64H"), 30),
    (("MUFU",), 24),
    (("DADD", "DMUL", "DFMA", "DSETP"), 16),
    (("F2F", "I2F", "F2I", "I2FP", "F2FP"), 10),
    (("S2R", "S2UR", "CS2R"), 25),
    (("R2UR",), 12),
)
ALU_LATENCY, BARRIER = 5, 30
_LINE = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(@!?\w+\s+)?([A-Z][\w.]*)\s*(.*?);")
_LABEL = re.compile(r"(\.L_x_\d+):")
_REGISTER = re.compile(r"\b(?:UR|R|UP|P)\d+\b")
_CALL_COST = 1000
_WITHOUT_RESULT = ("ST", "BRA", "EXIT", "BAR", "ATOM", "RED", "MEMBAR", "CCTL")


@dataclass(frozen=True)
class Instruction:
    """An instruction: its guard, its name and its operands."""

    guard: str
    name: str
    operands: tuple[str, ...]
    target: int | None = None  # of a branch, the index of an instruction
    is_per_thread: bool = False  # an operand depends on the thread's index

    @property
    def loaded_bytes(self) -> int:
        """The bytes that a thread loads from global memory."""
        if not self.name.startswith("LDG"):
            return 0
        widths = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
        return next((n for part, n in widths.items() if part in self.name.split(".")), 4)

    @property
    def is_conditional(self) -> bool:
        """Tell whether a branch or an exit may be passed."""
        first = self.operands[0] if self.operands else ""
        return bool(self.guard) or bool(re.match(r"!?U?P\d", first))


@dataclass(frozen=True)
class Run:
    """The cost of a path for a warp: clock cycles, and slots to issue instructions."""

    cycles: int
    instructions: int
    double_precision: int  # instructions in float64, which issue at half the rate


def disassemble(cubin: bytes) -> str:
    """Return the SASS of a compiled kernel."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-c", file.name]
        return str(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def read(sass: str) -> list[Instruction]:
    """Read the instructions of a kernel."""
    lines: list[tuple[str, str, str]] = []
    labels: dict[str, int] = {}
    for line in sass.splitlines():
        if label := _LABEL.match(line.strip()):
            labels[label[1]] = len(lines)
        elif found := _LINE.match(line):
            lines.append((found[1] or "", found[2], found[3]))
    return _mark_threads(
        Instruction(
            guard.strip(),
            name,
            tuple(part.strip() for part in text.split(",")),
            next((labels.get(label) for label in re.findall(r"\.L_x_\d+", text)), None)
            if name.startswith("BRA")
            else None,
        )
        for guard, name, text in lines
    )


def _mark_threads(code: Iterable[Instruction]) -> list[Instruction]:
    """Mark the instructions with an operand that depends on the thread's index."""
    marked, dependent = [], set[str]()
    for each in code:
        is_per_thread = "SR_TID.X" in each.operands or not dependent.isdisjoint(_reads(each))
        marked.append(replace(each, is_per_thread=is_per_thread))
        if not each.name.startswith(_WITHOUT_RESULT):
            if is_per_thread:
                dependent.update(_writes(each))
            elif not each.guard:
                dependent.difference_update(_writes(each))
    return marked


def fast_path(code: Sequence[Instruction], wide_loads: int, width: int = 16) -> list[Instruction]:
    """Return the shortest path to an exit on which a thread has so many loads of `width` bytes.

    Loads that are the same for all threads do not count. Branches backward are not taken. Calls, of
    the slow paths of divisions and roots, are avoided.
    """
    # For each instruction and number of wide loads from there on: the cost, and what comes next.
    shortest: list[dict[int, tuple[int, int, int]]] = [{} for _ in code]
    for index in range(len(code) - 1, -1, -1):
        each, ways = code[index], shortest[index]
        if each.name.startswith(("EXIT", "RET")):
            ways[0] = (1, -1, 0)
        for following in _followers(code, index):
            for loaded, (length, *_) in shortest[following].items():
                total = min(loaded + _is_of_stream(each, width), wide_loads)
                cost = length + (_CALL_COST if each.name.startswith("CALL") else 1)
                if total not in ways or cost < ways[total][0]:
                    ways[total] = (cost, following, loaded)
    path: list[Instruction] = []
    index, needed = 0, max(shortest[0])  # fewer, if a tile's rows are shorter than 16 bytes
    while index >= 0:
        path.append(code[index])
        _, index, needed = shortest[index][needed]
    return path


def longest_path(code: Sequence[Instruction]) -> list[Instruction]:
    """Return the longest path to an exit, without branches backward; calls are avoided."""
    longest: list[tuple[float, int]] = [(-math.inf, -1)] * len(code)  # a length, and what follows
    for index in range(len(code) - 1, -1, -1):
        own = -_CALL_COST if code[index].name.startswith("CALL") else 1
        ways = [(own + longest[k][0], k) for k in _followers(code, index)]
        if code[index].name.startswith(("EXIT", "RET")):
            ways.append((own, -1))
        longest[index] = max(ways, default=longest[index])
    path: list[Instruction] = []
    index = 0
    while index >= 0:
        path.append(code[index])
        index = longest[index][1]
    return path


def loops(code: Sequence[Instruction]) -> Iterator[Sequence[Instruction]]:
    """Yield the instructions of each loop, in their order."""
    for end, branch in enumerate(code):
        if branch.target is not None and branch.target <= end:
            yield code[branch.target : end + 1]


def _is_of_stream(each: Instruction, width: int) -> bool:
    """Tell whether an instruction loads a thread's elements, `width` bytes at once."""
    return each.is_per_thread and each.loaded_bytes == width


def _followers(code: Sequence[Instruction], index: int) -> Iterator[int]:
    """Yield the instructions that may come next, without branches backward."""
    each = code[index]
    if each.target is not None and each.target > index:
        yield each.target
    ends = each.name.startswith(("EXIT", "RET")) or each.target is not None
    if index + 1 < len(code) and (not ends or each.is_conditional):
        yield index + 1


def run(path: Sequence[Instruction], width: int = 16) -> Run:
    """Issue a warp's instructions in order, each when its operands are ready.

    A thread loads its elements `width` bytes at once, and all else from the cache.
    """
    ready: dict[str, int] = {}
    time = 0
    for each in path:
        time = max([time, *(ready.get(r, 0) for r in _reads(each))]) + 1
        if each.name.startswith("BAR"):
            time += BARRIER
        if not each.name.startswith(_WITHOUT_RESULT):
            for register in _writes(each):
                ready[register] = time + latency(each, width)
    doubles = sum(each.name.startswith(("DADD", "DMUL", "DFMA")) for each in path)
    return Run(time, len(path), doubles)


def latency(each: Instruction, width: int) -> int:
    """Return the cycles after which an instruction's result is ready."""
    if each.name.startswith("LDG"):
        return FROM_MEMORY if _is_of_stream(each, width) else FROM_CACHE
    fitting = (cycles for names, cycles in LATENCIES if each.name.startswith(names))
    return next(fitting, ALU_LATENCY)


def _reads(each: Instruction) -> Iterator[str]:
    has_result = not each.name.startswith(_WITHOUT_RESULT)
    yield from _REGISTER.findall(each.guard)
    for operand in each.operands[1:] if has_result else each.operands:
        for register in _REGISTER.findall(operand):
            yield from _consecutive(register, _width(each))


def _writes(each: Instruction) -> Iterator[str]:
    for operand in each.operands[:2] if "SETP" in each.name else each.operands[:1]:
        for register in _REGISTER.findall(operand):
            yield from _consecutive(register, _width(each))


def _width(each: Instruction) -> int:
    """Return the registers that an operand of an instruction takes."""
    if ".128" in each.name:
        return 4
    is_wide = each.name.startswith(("DADD", "DMUL", "DFMA", "DSETP", "F2F.F64", "IMAD.WIDE"))
    return 2 if is_wide or ".64" in each.name else 1


def _consecutive(register: str, count: int) -> Iterator[str]:
    letters, number = re.match(r"(\D+)(\d+)", register).groups()  # type: ignore[union-attr]
    for k in range(count if letters == "R" else 1):
        yield f"{letters}{int(number) + k}"
