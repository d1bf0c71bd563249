"""Libraries for the types that a model has, for sources that can do without the others.

Most models have tensors of one type, and computing both in float32 and in double takes a rule with
phases twice as long to build. So a library is built for the types of the first tensors, and another
one, for these too, when tensors of other types come. Single numbers, such as a step count, may be
of any type: they are read by a switch.
"""

from array import array
from collections.abc import Iterable, Iterator
from itertools import chain, combinations
from operator import attrgetter
from pathlib import Path

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.fused_cpu.toolchain import library_cache
from optgen.runtime.fused_cpu.toolchain.dtype_codes import CODES
from optgen.runtime.rule import Rule

_dtype = attrgetter("dtype")
_TYPES = "OPTGEN_TYPES"
"""Where a source says of which types it knows: bit k is the type that torch numbers k."""


def of_dtypes(dtypes: Iterable[torch.dtype]) -> int:
    """A bit for each of these types that a kernel can know, and for what it computes in then."""
    return _computed(sum(1 << CODES[dtype] for dtype in set(dtypes) & set(CODES)))


def of_works(rule: Rule, batches: Iterable[Batch]) -> int:
    """The types of all arrays of these works, be their states made or not."""
    dtypes = set(map(_dtype, chain.from_iterable(_arrays(rule, batch) for batch in batches)))
    own = {getattr(torch, s.dtype) for s in rule.states if s.dtype and s.shape != "scalar"}
    return of_dtypes(dtype.to_real() for dtype in dtypes | own)


def _arrays(rule: Rule, batch: Batch) -> Iterator[Tensor]:
    states = zip(rule.states, batch.states, strict=False)  # of which there are none at first
    shaped = [column for state, column in states if state.shape != "scalar"]
    return chain(batch.params, batch.grads, *shaped)


def of_table(words: "array[int]", streams: int) -> int:
    """The types that the first streams of a table have: those that are no single numbers."""
    codes = {word >> 4 * s & 15 for word in set(words) for s in range(streams)}
    return _computed(sum(1 << code for code in codes - {0}))


def _computed(types: int) -> int:
    """With the type that 16-bit numbers are computed with in."""
    return types | _SINGLE if types & _HALVES else types


_SINGLE = 1 << CODES[torch.float32]
_HALVES = 1 << CODES[torch.float16] | 1 << CODES[torch.bfloat16]
_MADE = 1 << CODES[torch.bfloat16]  # by matrix words, whatever they take
ALL = of_dtypes(CODES)


def made(source: str) -> int:
    """The types of what a kernel's source has made between its parts."""
    return _MADE if "optgen_calls" in source else 0


def library(name: str, source: str, types: int, beside: int = 0) -> tuple[Path, int]:
    """A library of a source for tensors of these types, and the types it is asked to know.

    It computes in no other type for what else is `beside` such tensors.
    """
    if _TYPES not in source:
        return library_cache.library(name, source), ALL
    path = built(name, source, types, beside) or build(name, source, types, beside)
    return path, types or _SINGLE


def built(name: str, source: str, types: int, beside: int) -> Path | None:
    """Where one lies that takes no compiler. One that knows more types serves as well."""
    texts = (_told(known | beside, source) for known in _enough(types or _SINGLE))
    return next(filter(None, (library_cache.built(name, text) for text in texts)), None)


def build(name: str, source: str, types: int, beside: int) -> Path:
    """One for these types only, made now unless another process has made it."""
    return library_cache.library(name, _told((types or _SINGLE) | beside, source))


def _told(types: int, source: str) -> str:
    return f"#define {_TYPES} {types}\n{source}"


def _enough(types: int) -> list[int]:
    """What libraries for these types can know, the least first."""
    bits = [1 << code for code in CODES.values()]
    sets = chain.from_iterable(combinations(bits, count) for count in range(len(bits) + 1))
    return sorted({_computed(types | sum(more)) for more in sets})
