"""Build the library that sweeps over blocks of tensors, for kernels of rules with phases.

The library reads a rule from a table. So it serves all such rules, and a second compiler process
can build it while the first one builds the kernel. This takes two thirds of the time that one
process would take for both.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import Executor
from functools import cache
from pathlib import Path

from optgen.runtime.toolchain import dtype_variants
from optgen.runtime.toolchain.source import inline_includes

_POINTER_SYMBOL, _TABLE_SYMBOL = "optgen_sweep_library", "optgen_sweeps"
"""Symbols: the kernel's pointer to the sweep functions, and the table of these functions."""

_FEATURES = {"OPTGEN_HAS_AXES": "HAS_AXES = true", "OPTGEN_HAS_MAX": "{Step::MAX"}
"""Macros of the sweep library, and for each the text by which a kernel's source shows its need.

A macro is 1 if the source needs it, else 0. The library builds faster with zeros.
"""


def start_build(
    executor: Executor, source: str, dtype_bits: int, extra_bits: int
) -> Callable[[], Path | None]:
    """Start to build the library that a kernel's source needs for tensors of these dtypes.

    Returns:
        A function that waits for the build and returns the library's path; None if the kernel needs
        no library.
    """
    if _POINTER_SYMBOL not in source:
        return lambda: None
    flags = {name: int(marker in source) for name, marker in _FEATURES.items()}
    defines = "".join(f"#define {name} {flag}\n" for name, flag in flags.items())
    build_arguments = (
        "sweeps",
        defines + _source(),
        dtype_bits,
        extra_bits,
    )
    # The caller will search the cache for the kernel's library in this thread. So this search runs
    # here too: searches in two threads would wait for each other. Only a build runs elsewhere.
    path = dtype_variants.find_built(*build_arguments)
    return (
        (lambda: path) if path else executor.submit(dtype_variants.build, *build_arguments).result
    )


def connect(kernel: ctypes.CDLL, path: Path) -> None:
    """Connect a kernel to the sweep functions of this library."""
    table = ctypes.c_char.in_dll(ctypes.CDLL(str(path)), _TABLE_SYMBOL)
    ctypes.c_void_p.in_dll(kernel, _POINTER_SYMBOL).value = ctypes.addressof(table)


@cache
def _source() -> str:
    return inline_includes(Path(__file__).with_suffix(".cpp").read_text())
