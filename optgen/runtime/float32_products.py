"""Products of matrices in float32 by a compiled function, for CPUs with AVX-512.

A matrix times its transpose takes half of the operations. Other products are torch's, except on
processors of AMD, where torch's library of products is further from the peak.
"""

import ctypes
from ctypes import c_bool, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from optgen.runtime.toolchain import compiler, library_cache, processors
from optgen.runtime.torch_private import data_ptr, has_exact_products, is_neg, thread_pool

_FEW_PRODUCTS = 1 << 24  # of numbers of two matrices; below, the call costs more than is won
_FEW_SYMMETRIC_PRODUCTS = 1 << 20  # of a matrix and its transpose
_LANES = 16  # sides are padded to a multiple
_MOST_PADDED = 1.06  # times as many elements as the product has


class _Lines(ctypes.Structure):
    """`Lines` of float32_products.cpp, field by field."""

    _fields_ = [
        ("data", c_void_p),
        ("count", c_int64),
        ("line_stride", c_int64),
        ("k_stride", c_int64),
    ]


class _Product(ctypes.Structure):
    """`Product` of float32_products.cpp, field by field."""

    _fields_ = [
        ("rows", _Lines),
        ("columns", _Lines),
        ("inner", c_int64),
        ("out", c_void_p),
        ("is_symmetric", c_bool),
        ("packed", c_void_p),
        ("barrier", c_void_p),
    ]


class ProductKernel:
    """The compiled function."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._run = library["optgen_float32_product"]
        self._run.argtypes, self._run.restype = (c_void_p, c_void_p), None
        self._packed_numbers = library["optgen_packed_numbers"]
        self._packed_numbers.argtypes = (c_int64, c_int)
        self._packed_numbers.restype = c_int64

    def product(self, a: Tensor, b: Tensor, *, is_symmetric: bool) -> Tensor:
        """Return `a @ b`.

        Args:
            a, b: tensors that `kernel_for` has seen.
            is_symmetric: whether b is a's transpose.
        """
        out = a.new_empty((*a.shape[:-1], b.size(-1)))
        threads = thread_pool()
        packed = a.new_empty(self._packed_numbers(a.size(-2), threads.count))
        for x, y, z in ((a, b, out),) if a.dim() == 2 else zip(a, b, out, strict=True):
            work = _Product(
                rows=_Lines(data_ptr(x), x.size(0), *x.stride()),
                columns=_Lines(data_ptr(y), y.size(1), *reversed(y.stride())),
                inner=x.size(1),
                out=data_ptr(z),
                is_symmetric=is_symmetric,
                packed=data_ptr(packed),
            )
            self._run(ctypes.addressof(work), ctypes.addressof(threads))
        return out


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return `a @ b` of tensors in plain memory, by the function that is faster."""
    kernel = kernel_for(a, b, is_symmetric=False)
    return kernel.product(a, b, is_symmetric=False) if kernel else torch.matmul(a, b)


def kernel_for(a: Tensor, b: Tensor, *, is_symmetric: bool) -> ProductKernel | None:
    """Return the function if it is faster than torch's for `a @ b`, else None.

    Args:
        a, b: tensors in plain memory, whose operations nothing follows.
        is_symmetric: whether b is a's transpose.
    """
    if not (a.dtype == b.dtype == torch.float32 and 2 <= a.dim() == b.dim() <= 3):
        return None
    rows, inner, columns = a.size(-2), a.size(-1), b.size(-1)
    if b.size(-2) != inner or a.shape[:-2] != b.shape[:-2]:
        return None
    if is_neg(a) or is_neg(b) or not has_exact_products() or torch.is_autocast_enabled("cpu"):
        return None
    if 1 not in a.stride()[-2:] or 1 not in b.stride()[-2:]:
        return None
    if rows * inner * columns < (_FEW_SYMMETRIC_PRODUCTS if is_symmetric else _FEW_PRODUCTS):
        return None  # the matrices of a batch are multiplied one by one
    if not is_symmetric:
        padded = -(-rows // _LANES) * -(-columns // _LANES) * _LANES**2
        if not processors.is_of_amd() or padded > _MOST_PADDED * rows * columns:
            return None
    return load()


def library_source() -> tuple[str, str]:
    """Return the name and the source of the library."""
    source = Path(__file__).with_name("float32_products.cpp").read_text()
    return "float32_products", library_cache.inline_includes(source)


@cache
def load() -> ProductKernel | None:
    """Return the compiled function; None if this CPU or the lack of a compiler forbids it."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return None
    try:
        return ProductKernel(ctypes.CDLL(str(library_cache.library(*library_source()))))
    except (library_cache.NoCompilerError, compiler.CompileError, OSError):
        return None  # the loader of the rule's kernel warns about the compiler
