"""Libraries for the types that a model has, for sources that can do without the others.

Most models have nothing of float64 and many nothing of 16 bits, and computing in double is a third
of what a rule with phases takes to build. So a library is built for the types of the first tensors,
and another one, for these too, when tensors of other types come.
"""

from array import array
from collections.abc import Iterable
from pathlib import Path

import torch

from optgen.runtime.fused_cpu import build_cache
from optgen.runtime.fused_cpu.table import CODES

_TYPES = "OPTGEN_TYPES"
"""Where a source says of which types it knows: bit k is the type that torch numbers k."""

_STREAMS = 16


def of_dtypes(dtypes: Iterable[torch.dtype]) -> int:
    """A bit for each of these types that a kernel can know."""
    return sum(1 << CODES[dtype] for dtype in set(dtypes) & set(CODES))


def of_table(words: "array[int]") -> int:
    """A bit for each type that any stream of a table has."""
    codes = {word >> 4 * s & 15 for word in set(words) for s in range(_STREAMS)}
    return sum(1 << code for code in codes - {0})


ALL = of_dtypes(CODES)
_ALWAYS = of_dtypes([torch.float32])  # what is not float64 is computed with in this type
_OPTIONAL = (of_dtypes([torch.float64]), of_dtypes([torch.float16, torch.bfloat16]))
_MADE = of_dtypes([torch.bfloat16])  # by matrix words, whatever they take


def library(name: str, source: str, types: int) -> tuple[Path, int]:
    """A library of a source for tensors of these types, and all the types it knows."""
    if _TYPES not in source:
        return build_cache.library(name, source), ALL
    for known in _enough(types | _MADE if "optgen_calls" in source else types):
        try:
            return build_cache.library(name, f"#define {_TYPES} {known}\n{source}"), known
        except build_cache.NoCompilerError as error:
            missing = error  # a cached one that can do more serves as well
    raise missing


def _enough(types: int) -> list[int]:
    """What libraries for these types can know, the least first."""
    least = sum((part for part in _OPTIONAL if part & types), _ALWAYS)
    return sorted({least | one | other for one in (0, *_OPTIONAL) for other in _OPTIONAL} | {least})
