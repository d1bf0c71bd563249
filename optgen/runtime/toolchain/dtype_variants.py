"""Build a kernel for exactly the dtypes that a model uses, and the library of its sweeps.

Most models have tensors of one dtype, and a kernel takes about twice as long to build for all
dtypes. So the first library is built for the dtypes of the first tensors. When tensors of other
dtypes come, another library is built for these and the earlier dtypes. Scalar states, such as a
step count, may have any dtype: a `switch` over the dtype reads them. A source that does not name
`OPTGEN_TYPES` is built for all dtypes.

A kernel of a rule with phases needs a second library, which sweeps over blocks of tensors. It reads
the rule from a table. So it serves all such rules, and a second compiler process can build it while
the first one builds the kernel. This takes two thirds of the time that one process would take.
"""

import ctypes
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from functools import cache
from itertools import chain, combinations
from operator import attrgetter
from pathlib import Path

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.rule import Rule
from optgen.runtime.state.create import dtype_of
from optgen.runtime.toolchain import library_cache
from optgen.runtime.toolchain.library_cache import inline_includes

DTYPE_CODES = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}
"""torch's numbers of the dtypes that kernels compute with or convert; dtypes.h has them too."""

QUANTIZED_DTYPE = torch.int8
"""The dtype of quantized states. An element has a value only together with its block's scale."""
STREAM_DTYPE_CODES = {**DTYPE_CODES, QUANTIZED_DTYPE: 1}
"""torch's numbers of the dtypes that a stream may have."""


_dtype = attrgetter("dtype")
_DTYPES_MACRO = "OPTGEN_TYPES"
"""Macro with the dtypes that a library is built for: bit k stands for torch's dtype number k."""


def bits_of_dtypes(dtypes: Iterable[torch.dtype]) -> int:
    """Return a bit for each of these dtypes that kernels know, and for the compute dtype."""
    return _with_compute_dtype(
        sum(1 << DTYPE_CODES[dtype] for dtype in set(dtypes) & set(DTYPE_CODES))
    )


def bits_of_batches(rule: Rule, batches: Iterable[Batch]) -> int:
    """Return the bits of the dtypes of these batches, including states not created yet."""
    dtypes = set(map(_dtype, chain.from_iterable(_streams(rule, batch) for batch in batches)))
    shaped_states = [state for state in rule.states if state.shape != "scalar"]
    declared = (dtype_of(state, dtype) for state in shaped_states for dtype in dtypes)
    all_dtypes = {*dtypes, *filter(None, declared)}
    if QUANTIZED_DTYPE in all_dtypes and rule.why_codes_are_not_read("fused_cpu"):
        all_dtypes.add(torch.float32)  # of the copies with the numbers of the codes
    return bits_of_dtypes(dtype.to_real() for dtype in all_dtypes - {QUANTIZED_DTYPE})


def _streams(rule: Rule, batch: Batch) -> Iterator[Tensor]:
    states = zip(rule.states, batch.states, strict=False)  # a first step has no states yet
    shaped = [column for state, column in states if state.shape != "scalar"]
    return chain(batch.params, batch.grads, *shaped)


def bits_of_table(packed_codes: "array[int]", stream_count: int) -> int:
    """Return the bits of the dtypes of a table's tensors.

    Each of `packed_codes` has four bits for each stream. Scalar states come after the first
    `stream_count` streams, and are left out.
    """
    streams = range(stream_count)
    codes = {packed >> 4 * stream & 15 for packed in set(packed_codes) for stream in streams}
    return _with_compute_dtype(sum(1 << code for code in codes & {*DTYPE_CODES.values()}))


def _with_compute_dtype(dtype_bits: int) -> int:
    """Add the bit of float32 if there are 16-bit dtypes: kernels compute with them in float32."""
    return dtype_bits | _FLOAT32 if dtype_bits & _SIXTEEN_BITS else dtype_bits


_FLOAT32 = 1 << DTYPE_CODES[torch.float32]
_SIXTEEN_BITS = 1 << DTYPE_CODES[torch.float16] | 1 << DTYPE_CODES[torch.bfloat16]
ALL_DTYPE_BITS = bits_of_dtypes(DTYPE_CODES)


def matrix_op_dtypes(options_of_calls: Iterable[tuple[str, ...]]) -> int:
    """Return the bits of the dtypes of matrix ops' results, for operands of any dtype."""
    names = {options[1] if options else "bfloat16" for options in options_of_calls}
    return sum(1 << DTYPE_CODES[getattr(torch, name)] for name in names - {"parameter"})


def library(name: str, source: str, dtype_bits: int, extra_bits: int = 0) -> tuple[Path, int]:
    """Return a library for tensors of these dtypes, and the bits of the dtypes to use it for.

    `extra_bits` are the bits of further dtypes for the library, such as those of matrix ops'
    results.
    """
    if _DTYPES_MACRO not in source:
        return library_cache.library(name, source), ALL_DTYPE_BITS
    path = find_built(name, source, dtype_bits, extra_bits) or build(
        name, source, dtype_bits, extra_bits
    )
    return path, dtype_bits or _FLOAT32


def find_built(name: str, source: str, dtype_bits: int, extra_bits: int) -> Path | None:
    """Return a library that is already built for at least these dtypes; None if there is none."""
    sources = (
        _with_define(bits | extra_bits, source) for bits in _supersets(dtype_bits or _FLOAT32)
    )
    return next(filter(None, (library_cache.find_built(name, each) for each in sources)), None)


def build(name: str, source: str, dtype_bits: int, extra_bits: int) -> Path:
    """Build a library for exactly these dtypes, unless another process has built it."""
    return library_cache.library(name, source_for(source, dtype_bits, extra_bits))


def source_for(source: str, dtype_bits: int, extra_bits: int) -> str:
    """Return the source of the library for exactly these dtypes."""
    if _DTYPES_MACRO not in source:
        return source
    return _with_define((dtype_bits or _FLOAT32) | extra_bits, source)


def _with_define(dtype_bits: int, source: str) -> str:
    return f"#define {_DTYPES_MACRO} {dtype_bits}\n{source}"


def _supersets(dtype_bits: int) -> list[int]:
    """Return the sets of dtypes that contain these dtypes, as bits in ascending order."""
    bits = [1 << code for code in DTYPE_CODES.values()]
    sets = chain.from_iterable(combinations(bits, count) for count in range(len(bits) + 1))
    return sorted({_with_compute_dtype(dtype_bits | sum(more)) for more in sets})


_POINTER_SYMBOL, _TABLE_SYMBOL = "optgen_sweep_library", "optgen_sweeps"
"""Symbols: the kernel's pointer to the sweep functions, and the table of these functions."""

SWEEPS = "sweeps"
"""The name of sweep libraries."""
_FEATURES = {"OPTGEN_HAS_AXES": "HAS_AXES = true", "OPTGEN_HAS_MAX": "{Step::MAX"}
"""Macros of the sweep library, and for each the text by which a kernel's source shows its need.

A macro is 1 if the source needs it, else 0. The library builds faster with zeros.
"""


def start_sweep_build(
    executor: Executor, source: str, dtype_bits: int, extra_bits: int
) -> Callable[[], Path | None]:
    """Start to build the library that a kernel's source needs for tensors of these dtypes.

    Returns:
        A function that waits for the build and returns the library's path; None if the kernel needs
        no library.
    """
    sweeps = sweeps_for(source)
    if sweeps is None:
        return lambda: None
    build_arguments = SWEEPS, sweeps, dtype_bits, extra_bits
    # The caller will search the cache for the kernel's library in this thread. So this search runs
    # here too: searches in two threads would wait for each other. Only a build runs elsewhere.
    path = find_built(*build_arguments)
    return (lambda: path) if path else executor.submit(build, *build_arguments).result


def sweeps_for(source: str) -> str | None:
    """Return the source of the sweep library that a kernel's source needs, or None."""
    if _POINTER_SYMBOL not in source:
        return None
    flags = {name: int(marker in source) for name, marker in _FEATURES.items()}
    return "".join(f"#define {name} {flag}\n" for name, flag in flags.items()) + _sweep_source()


def connect_sweeps(kernel: ctypes.CDLL, path: Path) -> None:
    """Connect a kernel to the sweep functions of this library."""
    table = ctypes.c_char.in_dll(ctypes.CDLL(str(path)), _TABLE_SYMBOL)
    ctypes.c_void_p.in_dll(kernel, _POINTER_SYMBOL).value = ctypes.addressof(table)


@cache
def _sweep_source() -> str:
    return inline_includes(Path(__file__).with_name("sweep_library.cpp").read_text())
