"""Kernels without double, for sources that can do without.

Most models have nothing of float64, and computing in double is a third of what a rule with
phases takes to build. So it is built without first, and once more, with all, when a tensor of that
type comes.
"""

from array import array
from pathlib import Path

import torch

from optgen.runtime.fused_cpu import build_cache
from optgen.runtime.fused_cpu.table import CODES

_WITHOUT = "OPTGEN_WITHOUT_DOUBLE"
_STREAMS = 16


def library(name: str, source: str, doubles: bool) -> tuple[Path, bool]:
    """A library of a source, and whether it can compute in double; it can if that is asked for."""
    if doubles or _WITHOUT not in source:
        return build_cache.library(name, source), True
    try:
        return build_cache.library(name, f"#define {_WITHOUT}\n{source}"), False
    except build_cache.NoCompilerError:  # a cached one that can do more serves as well
        return build_cache.library(name, source), True


def is_among(types: "array[int]") -> bool:
    """Tell whether a table's types name float64 in any stream."""
    code = CODES[torch.float64]
    return any(word >> 4 * s & 15 == code for word in set(types) for s in range(_STREAMS))
