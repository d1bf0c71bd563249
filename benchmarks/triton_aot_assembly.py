"""Read figures from a compiled kernel's assembly: registers, spills, widths of accesses."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import triton

_BYTES = {"i8": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "i32": 4, "i64": 8}
_UNMASKED = re.compile(
    r"tt\.(?:(load) %(\w+)|(store) %\w+, %[\w#]+) : tensor<([\dx]+)x!tt\.ptr<(\w+)>>"
)
"""A load or store without a mask, which is of a whole block."""
_DEFINITION = re.compile(r" *%(\w+) =")
_CONSTANT = re.compile(r"%(\w+) = arith\.constant dense<(\d+)> ")
_QUOTIENT = re.compile(r"%(\w+) = arith\.divsi %\w+, %(\w+) : tensor<")
_POINTERS = re.compile(r"%(\w+) = tt\.addptr %\w+, %(\w+) : tensor<")
_ANY = re.compile(r"tt\.(load|store) [^:]*: tensor<([\dx]+)x!tt\.ptr<(\w+)>>")
"""A load or store of several elements, with a mask or without."""
_PTX = re.compile(r"(ld|st)\.global(?:\.\w+)*?\.v(\d)\.b(\d+)")
_AMDGCN = re.compile(r"(?:global|buffer)_(load|store)_dwordx(\d)")
INEXACT = (".ftz", "div.full", ".approx")
"""Instructions that no kernel may use: they flush denormals, or do not round as IEEE 754."""
_LOG2_GUESS = "rcp.approx.ftz.f64"
"""The first approximation of a logarithm in float64, which is then refined. It is allowed."""

Accesses = Counter[tuple[str, int]]
"""The number of loads or stores of a thread, by kind and width in bytes."""


@dataclass(frozen=True)
class Figures:
    """Resources and accesses of a compiled kernel."""

    registers: int
    spilled_bytes: int  # bytes of local memory
    shared_bytes: int  # bytes of shared memory
    expected_accesses: Accesses  # accesses of whole blocks, if as wide as possible
    actual_accesses: Accesses  # those wider than 4 bytes
    inexact_instructions: tuple[str, ...]

    @property
    def has_widest_accesses(self) -> bool:
        """Tell whether whole blocks are read and written with the widest accesses possible."""
        return not self.expected_accesses - self.actual_accesses


def figures(compiled: Any, options: Mapping[str, Any]) -> Figures:
    """Return the figures of a kernel that was launched with these options."""
    threads = compiled.metadata.num_warps * compiled.metadata.target.warp_size
    expected = _expected_accesses(compiled.asm["ttir"], options, threads)
    shared = compiled.metadata.shared
    if "amdgcn" in compiled.asm:
        text = compiled.asm["amdgcn"]
        registers = _sum(text, r"\.[av]gpr_count:\s+(\d+)")
        # A scalar register spills to a lane of a vector register, which costs no memory.
        spilled = _sum(text, r"\.(?:private_segment_fixed_size|vgpr_spill_count):\s+(\d+)")
        actual = Counter((kind, 4 * int(words)) for kind, words in _AMDGCN.findall(text))
        return Figures(registers, spilled, shared, expected, actual, ())
    text, used = compiled.asm["ptx"], resources(compiled.asm["cubin"])
    kinds = {"ld": "load", "st": "store"}
    actual = Counter((kinds[k], int(n) * int(bits) // 8) for k, n, bits in _PTX.findall(text))
    inexact = tuple(name for name in INEXACT if name in text.replace(_LOG2_GUESS, ""))
    return Figures(used["REG"], used["STACK"] + used["LOCAL"], shared, expected, actual, inexact)


class BlockAccess(NamedTuple):
    """A load or store of a whole block of a stream."""

    kind: str  # "load" or "store"
    extent: tuple[int, ...]  # elements along each axis
    itemsize: int
    sharing: int = 1  # neighbouring elements that access one address: those of a scale

    @property
    def num_bytes(self) -> float:
        """The bytes of the block; each address counts once."""
        return prod(self.extent) * self.itemsize / self.sharing

    def elements_at_once(self, options: Mapping[str, Any]) -> int:
        """Return how many elements one instruction may access, with a launch's options."""
        consecutive = self.extent[-1] if prod(self.extent[1:]) > 1 else self.extent[0]
        return int(min(options.get("VECTOR", 1), consecutive))


def block_accesses(ttir: str, options: Mapping[str, Any]) -> Iterator[BlockAccess]:
    """Yield a sweep's accesses of whole blocks; with tiles it has them for each tile shape."""
    if "VECTOR" not in options:
        return  # a finish, or a fold: it reads partial sums
    axes = 3 if "TILES" in options else 1  # of a tile [matrix, row, column], or of a block
    # By the name of an offset, of a pointer or of a constant; the regions of a kernel reuse names.
    sharing: dict[str, int] = {}
    constants: dict[str, int] = {}
    for line in ttir.splitlines():
        if found := _DEFINITION.match(line):
            sharing.pop(found[1], None)
            constants.pop(found[1], None)
        if found := _CONSTANT.search(line):
            constants[found[1]] = int(found[2])
        elif found := _QUOTIENT.search(line):
            sharing[found[1]] = constants.get(found[2], 1)
        elif found := _POINTERS.search(line):
            sharing[found[1]] = sharing.get(found[2], 1)
        elif found := _UNMASKED.search(line):
            load, source, store, size, dtype = found.groups()
            extent = tuple(int(n) for n in size.split("x"))
            if len(extent) == axes:
                shared = sharing.get(source, 1) if load else 1
                yield BlockAccess(load or store, extent, _BYTES[dtype], shared)


def bytes_per_element(ttir: str, options: Mapping[str, Any]) -> tuple[float, float]:
    """Return the bytes that a sweep reads and writes for each element; zeros for other kernels."""
    paths = len(options.get("TILES", ())) or 1
    elements = max((prod(a.extent) for a in block_accesses(ttir, options)), default=1)
    read, written = (
        sum(a.num_bytes for a in block_accesses(ttir, options) if a.kind == kind)
        for kind in ("load", "store")
    )
    return read / paths / elements, written / paths / elements


def all_bytes(ttir: str) -> tuple[float, float]:
    """Return the bytes that a block reads and writes if it takes each loop and branch once.

    Single numbers do not count.
    """
    accesses = [
        (kind, prod(map(int, extent.split("x"))) * _BYTES[dtype])
        for kind, extent, dtype in _ANY.findall(ttir)
    ]
    read, written = (
        sum(size for kind, size in accesses if kind == wanted) for wanted in ("load", "store")
    )
    return read, written


def bytes_per_round(ttir: str, extent: str) -> list[int]:
    """Return the bytes that each loop loads in a round, in pieces of an extent such as "1x1024".

    Loops that have no such loads are left out.
    """
    loops = (_ANY.findall(text) for text in ttir.split("scf.for")[1:])
    sizes = (
        sum(
            prod(map(int, size.split("x"))) * _BYTES[dtype]
            for kind, size, dtype in accesses
            if (kind, size) == ("load", extent)
        )
        for accesses in loops
    )
    return list(filter(None, sizes))


def _expected_accesses(ttir: str, options: Mapping[str, Any], threads: int) -> Accesses:
    """Count the accesses of whole blocks: 16 bytes wide for the widest stream."""
    expected: Accesses = Counter()
    for each in (a for a in block_accesses(ttir, options) if a.sharing == 1):
        at_once = each.elements_at_once(options)
        if (size := at_once * each.itemsize) > 4:
            expected[each.kind, size] += prod(each.extent) // threads // at_once
    return expected


def resources(cubin: bytes) -> dict[str, int]:
    """Return registers, stack and local memory, from NVIDIA's cuobjdump."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        run = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        )
    return {k: int(n) for k, n in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", run.stdout)}


def _sum(text: str, pattern: str) -> int:
    return sum(map(int, re.findall(pattern, text)))
