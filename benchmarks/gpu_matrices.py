"""Newton-Schulz iterations on a card: torch's products, and the Triton kernel that takes halves.

The kernel is taken only where it is forced (`newton_schulz.force_way("symmetric")`), until this
part has run on a card and shows where it pays (docs/decisions/0120).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_device import DEVICE, IS_SMALL, REHEARSAL, release_memory
from benchmarks.gpu_offload import least
from benchmarks.gpu_results import Result, result_of
from optgen.runtime import newton_schulz
from optgen.runtime.newton_schulz import Iterations

SHAPES = (
    ((2, 24, 40),)
    if IS_SMALL
    else ((12, 768, 768), (12, 768, 3072), (12, 3072, 768), (4, 2048, 2048), (4, 4096, 11008))
)
"""The matrices of one call: those of GPT-2 small, and of models of 1 and 7 billion parameters."""
QUINTIC = (3.4445, -4.775, 2.0315)
WAYS = ("batched", "symmetric")
DTYPES = (torch.float16,) if REHEARSAL else (torch.bfloat16, torch.float16)
"""Triton's interpreter multiplies the bits of bfloat16 numbers as if they were whole numbers."""
IS_EMULATED = IS_SMALL and not REHEARSAL
NO_TENSOR_CORES = "not tried: an emulated device of this generation has no products of matrices"

Tasks = dict[str, Callable[[], Result]]


def tasks() -> Tasks:
    """Return the tasks by name."""
    all_tasks: Tasks = {}
    for shape in SHAPES:
        for dtype in DTYPES:
            title = f"{' x '.join(map(str, shape))}, {str(dtype)[6:]}"
            all_tasks[f"{title}: error"] = result_of(partial(errors, shape, dtype))
            all_tasks[f"{title}: time"] = partial(times, shape, dtype)
    absent = dict.fromkeys(all_tasks, lambda: {"absent": NO_TENSOR_CORES})
    return absent if IS_EMULATED else all_tasks


def iterate(way: str, x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Run five iterations by a way."""
    with newton_schulz.force_way(way):
        (result,) = newton_schulz.iterate([x], Iterations(QUINTIC, 5, 1e-7, dtype=dtype))
    return result


def errors(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[float, float]:
    """Compare the kernel's error against float64 with that of torch's products."""
    x = drawn(shape)
    exact = iterate("batched", x.double(), None)
    kernel, plain = (
        float((iterate(way, x, dtype).double() - exact).norm()) for way in reversed(WAYS)
    )
    return kernel, 1.5 * plain


def times(shape: tuple[int, ...], dtype: torch.dtype) -> Result:
    """Measure both ways; they take turns."""
    x = drawn(shape)
    for way in WAYS:
        iterate(way, x, dtype)  # compiles the kernel
    seconds = least({way: partial(iterate, way, x, dtype) for way in WAYS})
    figures: dict[str, Any] = {f"{way}_ms": 1e3 * time for way, time in seconds.items()}
    return figures | {"torch_over_kernel": seconds["batched"] / seconds["symmetric"]}


def drawn(shape: tuple[int, ...]) -> Tensor:
    """Return Gaussian matrices in float32, after the memory of earlier tasks is released."""
    release_memory()
    generator = torch.Generator(DEVICE).manual_seed(0)
    return torch.randn(shape, device=DEVICE, generator=generator)
