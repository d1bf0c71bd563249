"""Build and call the C++ of cpu_kernels.cpp: an iteration in three passes over memory."""

import ctypes
import warnings
from ctypes import POINTER, c_double, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from optgen.optim.lbfgs.curvature_pairs import Pairs
from optgen.runtime.fused_cpu.kernel import threads
from optgen.runtime.fused_cpu.toolchain import compiler, library_cache

_TYPES = {torch.float32: "float32", torch.float64: "float64"}


class _Job(ctypes.Structure):
    """`Job` of cpu_kernels.cpp, field by field."""

    _fields_ = [
        *((name, c_int64) for name in ("elements", "stride", "slots", "first", "count")),
        *((name, c_void_p) for name in ("steps", "changes")),
        *((name, c_void_p) for name in ("gradient", "previous", "direction", "rest")),
        *((name, c_void_p) for name in ("products", "alphas")),
        *((name, c_double) for name in ("scale", "t")),
        ("fresh", c_int64),
        ("result", c_double * 2),
    ]


class Kernels:
    """Compiled functions for vectors of one dtype."""

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        name = _TYPES[dtype]
        self._observe, self._direct = library[f"observe_{name}"], library[f"direct_{name}"]
        for function in (self._observe, self._direct):
            function.argtypes = (POINTER(_Job), c_void_p)
            function.restype = None

    def observe(
        self, pairs: Pairs, gradient: Tensor, previous: Tensor, direction: Tensor, t: float
    ) -> tuple[float, float]:
        """Write a pair to the free rows.

        Returns:
            The dot products of the gradient's change with the step and with itself.
        """
        job = _job(pairs, gradient, direction)
        job.previous, job.t = previous.data_ptr(), t
        self._observe(job, ctypes.addressof(threads.current()))
        return job.result[0], job.result[1]

    def direct(
        self,
        pairs: Pairs,
        products: Tensor,
        fresh: bool,
        scale: float,
        gradient: Tensor,
        out: Tensor,
        rest: Tensor,
    ) -> tuple[Tensor, float, float]:
        """Compute the direction into `out`, and if `fresh`, the last column of `products`.

        Returns:
            The coefficients, the slope along the direction, and the largest magnitude in it.
        """
        alphas = torch.empty(pairs.count, dtype=torch.float64)
        job = _job(pairs, gradient, out)
        job.products, job.alphas = products.data_ptr(), alphas.data_ptr()
        job.rest, job.scale, job.fresh = rest.data_ptr(), scale, fresh
        self._direct(job, ctypes.addressof(threads.current()))
        return alphas, job.result[0], job.result[1]


def _job(pairs: Pairs, gradient: Tensor, direction: Tensor) -> _Job:
    return _Job(
        elements=pairs.numel,
        stride=pairs.steps.stride(0),
        slots=pairs.slots,
        first=pairs.oldest,
        count=pairs.count,
        steps=pairs.steps.data_ptr(),
        changes=pairs.changes.data_ptr(),
        gradient=gradient.data_ptr(),
        direction=direction.data_ptr(),
    )


def kernels_for(like: Tensor) -> Kernels | None:
    """Return the compiled functions for vectors like this one, or None if there are none."""
    if like.device.type != "cpu" or like.dtype not in _TYPES:
        return None
    return _built(like.dtype)


@cache
def _built(dtype: torch.dtype) -> Kernels | None:
    library = _library()
    return None if library is None else Kernels(library, dtype)


@cache
def _library() -> ctypes.CDLL | None:
    kernels, vectors = (Path(__file__).with_name(name) for name in ("cpu_kernels.cpp", "vectors.h"))
    source = kernels.read_text().replace('#include "vectors.h"\n', vectors.read_text())
    try:
        return ctypes.CDLL(str(library_cache.library("lbfgs", source)))
    except (library_cache.NoCompilerError, compiler.CompileError, OSError) as error:
        warnings.warn(f"LBFGS on CPU tensors will be slow: {error}", stacklevel=2)
        return None
