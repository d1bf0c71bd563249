"""Gradients that are kept on the host until the step: their sums, and the squares of their norms.

A gradient that arrives is added and squared in one pass, by C++ (gradient_sum.cpp). The squares are
summed in float64, in an order that neither the threads nor the times of arrival change.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Container, Iterable, Mapping, Sequence
from ctypes import c_int, c_int64, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from optgen.offloading.buckets import Bucket
from optgen.runtime.toolchain import library_cache
from optgen.runtime.toolchain.dtype_variants import DTYPE_CODES
from optgen.runtime.torch_private import data_ptr, thread_pool


class _Task(ctypes.Structure):
    """`GradientSum` of gradient_sum.cpp, field by field."""

    _fields_ = [
        *((name, c_void_p) for name in ("sum", "arrived", "chunk_squares")),
        ("count", c_int64),
        ("sum_dtype", c_uint32),
        ("arrived_dtype", c_uint32),
        ("begins", c_int),
    ]


class GradientSums:
    """The sums of gradients since the last step, by parameter.

    Args:
        buckets: All buckets.
        dtype: The dtype of the sums; None for that of the parameters.
        wants_norm: Whether squares are summed as gradients arrive.
        threads: The threads that add.
        earlier: The sums of another set of parameters: those of parameters in both go on.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        dtype: torch.dtype | None,
        wants_norm: bool,
        threads: int,
        earlier: GradientSums | None = None,
    ) -> None:
        self._buckets, self._threads = buckets, threads
        self._library, chunk = _library()
        self.by_param: dict[Tensor, Tensor] = {}
        known = earlier.by_param if earlier else {}
        for bucket in buckets:
            for owner in (piece.owner for piece in bucket.pieces):
                if owner.param not in self.by_param:
                    found = known.get(owner.param)
                    self.by_param[owner.param] = (
                        torch.zeros(owner.local.numel(), dtype=dtype or owner.local.dtype)
                        if found is None
                        else found
                    )
        self.pieces = [
            [
                self.by_param[each.owner.param][each.first : each.first + each.count]
                for each in bucket.pieces
            ]
            for bucket in buckets
        ]
        self._squares = [
            [array("d", bytes(8 * (-(-each.count // chunk)) * wants_norm)) for each in b.pieces]
            for b in buckets
        ]

    def add(self, bucket: Bucket, row: int, arrived: Tensor | None, begins: bool) -> None:
        """Add a gradient that has arrived, in memory without gaps, to the sum in a row; square it.

        None adds nothing. If the gradient `begins` the sum, it takes the place of the last step's.
        """
        total, squares = self.pieces[bucket.index][row], self._squares[bucket.index][row]
        task = _Task(
            data_ptr(total),
            None if arrived is None else data_ptr(arrived),
            squares.buffer_info()[0] if squares else None,
            total.numel(),
            DTYPE_CODES[total.dtype],
            DTYPE_CODES[total.dtype if arrived is None else arrived.dtype],
            begins,
        )
        pool = thread_pool(self._threads)
        self._library.optgen_add_gradient(ctypes.byref(task), ctypes.byref(pool))

    def load(self, sums: Mapping[Tensor, Tensor]) -> None:
        """Take over sums of parameters, and square them."""
        for param, value in sums.items():
            self.by_param[param].copy_(value.reshape(-1))
        self.square(sums)

    def square(self, params: Container[Tensor]) -> None:
        """Sum the squares of some parameters again."""
        for bucket in self._buckets:
            for row, piece in enumerate(bucket.pieces):
                if piece.owner.param in params:
                    self.add(bucket, row, None, begins=False)

    def squares(self, params: Container[Tensor]) -> dict[Tensor, float]:
        """Return the squares of norms of the sums of some parameters."""
        chunks: dict[Tensor, list[float]] = {}
        for bucket, squares in zip(self._buckets, self._squares, strict=True):
            for piece, numbers in zip(bucket.pieces, squares, strict=True):
                if piece.owner.param in params:
                    chunks.setdefault(piece.owner.param, []).extend(numbers)
        return {param: _sum(numbers) for param, numbers in chunks.items()}


def _sum(numbers: Iterable[float]) -> float:
    """Return the rounded exact sum; NaN or infinity if a number is none."""
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):  # infinities, or a sum beyond float64
        return sum(numbers)


@cache
def _library() -> tuple[Any, int]:
    """Return the library, which is built once, and the elements of a chunk of squares."""
    source = Path(__file__).with_name("gradient_sum.cpp").read_text()
    path = library_cache.library("gradient_sum", library_cache.inline_includes(source))
    library = ctypes.CDLL(str(path))
    library.optgen_add_gradient.restype = None
    return library, c_int64.in_dll(library, "optgen_chunk").value
