"""The library that sweeps over blocks of tensors, for kernels of rules with phases.

It knows a rule as a table only. So a compiler of its own builds it while another one builds the
kernel, which takes two thirds of the time of both in one; and it serves any such rule.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import Executor
from functools import cache
from pathlib import Path

from optgen.runtime.fused_cpu.build import dtype_variants
from optgen.runtime.fused_cpu.build.source import complete

_KERNEL, _OWN = "optgen_sweep_library", "optgen_sweeps"
"""Where a kernel has the address of the sweeps' calls, and where these are."""

_TRAITS = {"OPTGEN_HAS_AXES": "HAS_AXES = true", "OPTGEN_HAS_MAX": "{Step::MAX"}
"""What of its rules a kernel's source says so: sweeps for others are built in less time."""


def begun(beside: Executor, source: str, types: int) -> Callable[[], Path | None]:
    """What tells where it lies for a kernel's source and tensors of these types, or None if the
    kernel needs none. Where it has to be built another thread begins at once."""
    if _KERNEL not in source:
        return lambda: None
    dispatch_keys = "".join(
        f"#define {name} {int(sign in source)}\n" for name, sign in _TRAITS.items()
    )
    asked = "sweeps", dispatch_keys + _source(), types, dtype_variants.made(source)
    path = dtype_variants.built(*asked)  # two threads that look would wait for one another
    return (lambda: path) if path else beside.submit(dtype_variants.build, *asked).result


def connect(kernel: ctypes.CDLL, path: Path) -> None:
    """Have a kernel's tensors swept by this library."""
    calls = ctypes.c_char.in_dll(ctypes.CDLL(str(path)), _OWN)
    ctypes.c_void_p.in_dll(kernel, _KERNEL).value = ctypes.addressof(calls)


@cache
def _source() -> str:
    return complete(Path(__file__).with_suffix(".cpp").read_text())
