"""Build and call cpu_kernels.cpp, which computes a direction in three passes over memory."""

import ctypes
import warnings
from ctypes import POINTER, c_double, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from optgen.optim.lbfgs.curvature_pairs import CurvaturePairs
from optgen.runtime.fused_cpu.kernel import thread_pool
from optgen.runtime.toolchain import compiler, library_cache

_DTYPE_NAMES = {torch.float32: "float32", torch.float64: "float64"}


class _Job(ctypes.Structure):
    """`Job` of cpu_kernels.cpp, field by field."""

    _fields_ = [
        *((name, c_int64) for name in ("elements", "stride", "slots", "oldest_row", "pair_count")),
        *((name, c_void_p) for name in ("steps", "changes")),
        *((name, c_void_p) for name in ("gradient", "previous_gradient", "direction", "scratch")),
        *((name, c_void_p) for name in ("products", "alphas")),
        *((name, c_double) for name in ("scale", "step_length")),
        ("lacks_last_column", c_int64),
        ("result", c_double * 2),
    ]


class Kernels:
    """Compiled functions for vectors of one dtype."""

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        dtype_name = _DTYPE_NAMES[dtype]
        self._write_pair = library[f"write_pair_{dtype_name}"]
        self._compute_direction = library[f"compute_direction_{dtype_name}"]
        for function in (self._write_pair, self._compute_direction):
            function.argtypes = (POINTER(_Job), c_void_p)
            function.restype = None

    def write_pair(
        self,
        pairs: CurvaturePairs,
        gradient: Tensor,
        previous_gradient: Tensor,
        direction: Tensor,
        t: float,
    ) -> tuple[float, float]:
        """Write the pair of a step `t * direction` to the free rows.

        Returns:
            The dot products of the gradient's change with the step and with itself.
        """
        job = _make_job(pairs, gradient, direction)
        job.previous_gradient, job.step_length = previous_gradient.data_ptr(), t
        self._write_pair(job, ctypes.addressof(thread_pool()))
        return job.result[0], job.result[1]

    def compute_direction(
        self,
        pairs: CurvaturePairs,
        products: Tensor,
        lacks_last_column: bool,
        scale: float,
        gradient: Tensor,
        out: Tensor,
        scratch: Tensor,
    ) -> tuple[Tensor, float, float]:
        """Compute the direction into `out`, and the last column of `products` if it is lacking.

        `scratch` is a vector that is overwritten.

        Returns:
            The coefficients of the first loop, the slope along the direction, and the largest
            magnitude in the direction.
        """
        alphas = torch.empty(pairs.count, dtype=torch.float64)
        job = _make_job(pairs, gradient, out)
        job.products, job.alphas = products.data_ptr(), alphas.data_ptr()
        job.scratch, job.scale = scratch.data_ptr(), scale
        job.lacks_last_column = lacks_last_column
        self._compute_direction(job, ctypes.addressof(thread_pool()))
        return alphas, job.result[0], job.result[1]


def _make_job(pairs: CurvaturePairs, gradient: Tensor, direction: Tensor) -> _Job:
    return _Job(
        elements=pairs.numel,
        stride=pairs.steps.stride(0),
        slots=pairs.slots,
        oldest_row=pairs.oldest_row,
        pair_count=pairs.count,
        steps=pairs.steps.data_ptr(),
        changes=pairs.changes.data_ptr(),
        gradient=gradient.data_ptr(),
        direction=direction.data_ptr(),
    )


def kernels_for(like: Tensor) -> Kernels | None:
    """Return the compiled functions for vectors of this dtype and device, or None."""
    if like.device.type != "cpu" or like.dtype not in _DTYPE_NAMES:
        return None
    return _compiled_kernels(like.dtype)


@cache
def _compiled_kernels(dtype: torch.dtype) -> Kernels | None:
    library = _load_library()
    return None if library is None else Kernels(library, dtype)


@cache
def _load_library() -> ctypes.CDLL | None:
    kernels_path, vectors_path = (
        Path(__file__).with_name(name) for name in ("cpu_kernels.cpp", "vectors.h")
    )
    header = vectors_path.read_text()
    source = kernels_path.read_text().replace('#include "vectors.h"\n', header)
    try:
        return ctypes.CDLL(str(library_cache.library("lbfgs", source)))
    except (library_cache.NoCompilerError, compiler.CompileError, OSError) as error:
        warnings.warn(f"LBFGS on CPU tensors will be slow: {error}", stacklevel=2)
        return None
