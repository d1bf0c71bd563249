"""What a compiled kernel's assembly says: registers, spills, how widely it reads and writes."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import triton

_BYTES = {"bf16": 2, "f16": 2, "f32": 4, "f64": 8}
_WHOLE = re.compile(r"tt\.(?:(load) %\w+|(store) %\w+, %[\w#]+) : tensor<([\dx]+)x!tt\.ptr<(\w+)>>")
"""An access without a mask."""
_PTX = re.compile(r"(ld|st)\.global(?:\.\w+)*?\.v(\d)\.b(\d+)")
_AMDGCN = re.compile(r"(?:global|buffer)_(load|store)_dwordx(\d)")
INEXACT = (".ftz", "div.full", ".approx")
"""What no kernel may do: flush denormal numbers, round other than IEEE 754 says."""
_FIRST_GUESS = "rcp.approx.ftz.f64"
"""Where the logarithm of a float64 begins its division, which it then refines."""

Accesses = Counter[tuple[str, int]]
"""How often a thread loads, or stores, so many bytes at once."""


@dataclass(frozen=True)
class Figures:
    """What a compiled kernel takes and does."""

    registers: int
    spilled: int  # bytes of memory
    shared: int  # bytes that the threads of a block share
    wanted: Accesses  # those of whole blocks, as wide as they can be
    found: Accesses  # all that are wider than 4 bytes
    inexact: tuple[str, ...]

    @property
    def is_wide(self) -> bool:
        """Whether whole blocks are read and written as widely as they can be."""
        return not self.wanted - self.found


def figures(compiled: Any, options: Mapping[str, Any]) -> Figures:
    """Those of a kernel that was launched with these options."""
    lanes = compiled.metadata.num_warps * compiled.metadata.target.warp_size
    axes = 3 if "TILES" in options else 1  # of a tile [matrix, row, column], or of a block
    wanted = _wanted(compiled.asm["ttir"], options.get("VECTOR", 1), lanes, axes)
    shared = compiled.metadata.shared
    if "amdgcn" in compiled.asm:
        text = compiled.asm["amdgcn"]
        registers = _sum(text, r"\.[av]gpr_count:\s+(\d+)")
        # A scalar register spills to a lane of a vector register, which costs no memory.
        spilled = _sum(text, r"\.(?:private_segment_fixed_size|vgpr_spill_count):\s+(\d+)")
        found = Counter((kind, 4 * int(words)) for kind, words in _AMDGCN.findall(text))
        return Figures(registers, spilled, shared, wanted, found, ())
    text, used = compiled.asm["ptx"], _resources(compiled.asm["cubin"])
    kinds = {"ld": "load", "st": "store"}
    found = Counter((kinds[k], int(n) * int(bits) // 8) for k, n, bits in _PTX.findall(text))
    inexact = tuple(name for name in INEXACT if name in text.replace(_FIRST_GUESS, ""))
    return Figures(used["REG"], used["STACK"] + used["LOCAL"], shared, wanted, found, inexact)


def _wanted(ttir: str, vector: int, lanes: int, axes: int) -> Accesses:
    """Accesses of whole blocks: 16 bytes at a time of the widest stream, as many of the others."""
    wanted: Accesses = Counter()
    for load, store, size, kind in _WHOLE.findall(ttir):
        extent = [int(n) for n in size.split("x")]
        consecutive = extent[-1] if prod(extent[1:]) > 1 else extent[0]
        at_once = min(vector, consecutive)
        if len(extent) == axes and at_once * _BYTES[kind] > 4:
            wanted[load or store, at_once * _BYTES[kind]] += prod(extent) // lanes // at_once
    return wanted


def _resources(cubin: bytes) -> dict[str, int]:
    """Registers, stack and local memory, from NVIDIA's own tool."""
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
