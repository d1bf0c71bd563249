"""Approximate the inverse Hessian by the last curvature pairs.

Torch multiplies by this matrix in two loops over the pairs (Nocedal and Wright, algorithm 7.4),
with two dot products and two sums for each pair. Written for all pairs at once, these loops are two
triangular systems in R = Sᵀ Y (Byrd, Nocedal and Schnabel, 1994), where S holds the steps and Y the
changes of the gradient. A direction takes four matrix-vector products, and one more after each new
pair. On a CPU, compiled code computes it in three passes over memory. All parameters are one
vector, `FlatParameters`.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import warnings
from ctypes import POINTER, c_double, c_int64, c_void_p
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.batch.check_batch import check_storages
from optgen.runtime.toolchain import compiler, library_cache
from optgen.runtime.torch_private import is_plain_class, thread_pool


class History:
    """The last curvature pairs, at most `capacity`, and the products of their vectors."""

    def __init__(self, capacity: int, like: Tensor) -> None:
        self._vector_key = _vector_key(like)
        self._like = like.new_empty(0)
        self._pairs = CurvaturePairs(capacity, like)
        self._kernels = kernels_for(like)
        self._products = torch.zeros(0, 0, dtype=torch.float64)  # R, oldest pair first
        self._lacks_last_column = False  # of R, until the next direction computes it
        self._scale = 1.0
        self._alphas: Tensor | None = None  # of the last direction
        self._rows_in_state: list[list[Tensor]] = []
        self._versions_in_state = (0, 0)

    @classmethod
    def from_state(cls, capacity: int, like: Tensor, state: dict[str, Any]) -> History:
        """Return the history that an optimizer's state holds in torch's layout."""
        history = cls(capacity, like)
        pairs = history._pairs
        steps, changes = state["old_stps"][-capacity:], state["old_dirs"][-capacity:]
        for pair in zip(steps, changes, strict=True):
            for free, row in zip(pairs.free_rows(), pair, strict=True):
                free.copy_(row)
            pairs.accept()
        if pairs.count:
            left, right = pairs.steps[: pairs.count], pairs.changes[: pairs.count]
            products = torch.mm(left[:, : pairs.numel], right[:, : pairs.numel].t())
            history._products = products.to("cpu", torch.float64).triu()
        history._scale = float(state["H_diag"])
        return history

    def write_pair(
        self, gradient: Tensor, previous_gradient: Tensor, direction: Tensor, t: float
    ) -> tuple[float, float]:
        """Write the pair of a step `t * direction` to the free rows.

        Returns:
            The dot products of the gradient's change with the step and with itself.
        """
        if self._kernels:
            return self._kernels.write_pair(self._pairs, gradient, previous_gradient, direction, t)
        step, change = self._pairs.free_rows()
        torch.mul(direction, t, out=step)
        torch.sub(gradient, previous_gradient, out=change)
        return change.dot(step).item(), change.dot(change).item()

    def accept(self, scale: float) -> None:
        """Add the pair in the free rows, and set the scale of the inverse Hessian."""
        self._rows_in_state = []
        self._pairs.accept()
        count = self._pairs.count
        is_full = len(self._products) == count  # the new pair replaced the oldest
        old_products = self._products[1:, 1:] if is_full else self._products
        self._products = torch.zeros(count, count, dtype=torch.float64)
        self._products[: len(old_products), : len(old_products)] = old_products
        self._lacks_last_column = True
        self._scale = scale

    def compute_direction(
        self, gradient: Tensor, out: Tensor, scratch: Tensor
    ) -> tuple[float, float]:
        """Compute minus the inverse Hessian times the gradient, into `out`.

        `scratch` is a vector that is overwritten.

        Returns:
            The dot product of the direction with the gradient, and the largest magnitude in the
            direction.
        """
        lacks_last_column, self._lacks_last_column = self._lacks_last_column, False
        if self._kernels and self._pairs.count:
            alphas, slope, max_abs_direction = self._kernels.compute_direction(
                self._pairs, self._products, lacks_last_column, self._scale, gradient, out, scratch
            )
            self._alphas = -alphas  # torch's loop begins with minus the gradient
            return slope, max_abs_direction
        self._compute_direction_by_torch(lacks_last_column, gradient, out, scratch)
        return gradient.dot(out).item(), max_abs(out)

    def _compute_direction_by_torch(
        self, lacks_last_column: bool, gradient: Tensor, out: Tensor, scratch: Tensor
    ) -> None:
        if not self._pairs.count:
            torch.mul(gradient, -self._scale, out=out)
            return
        pairs = self._pairs
        steps, changes = pairs.slices(pairs.steps), pairs.slices(pairs.changes)
        products = self._products
        if lacks_last_column:
            newest_change = changes[-1][-1]
            products[:, -1] = dots(steps, newest_change)
        alphas = _solve(products, dots(steps, gradient), upper=True)
        scratch.copy_(gradient)
        add_weighted_rows(scratch, changes, -alphas)
        betas = products.diagonal() * alphas - self._scale * dots(changes, scratch)
        torch.mul(scratch, -self._scale, out=out)
        add_weighted_rows(out, steps, -_solve(products.mT, betas, upper=False))
        self._alphas = -alphas

    def write_to(self, state: dict[str, Any]) -> None:
        """Write the history to an optimizer's state in torch's layout.

        The vectors in the state are views of the rows of the matrices.
        """
        pairs = self._pairs
        self._rows_in_state = [pairs.rows(pairs.changes), pairs.rows(pairs.steps)]
        self._versions_in_state = pairs.versions()
        state["old_dirs"], state["old_stps"] = map(list, self._rows_in_state)
        state["ro"] = self._as_scalars(1 / self._products.diagonal())
        state["H_diag"] = self._like.new_tensor(self._scale) if pairs.count else 1

    def alphas(self) -> list[Tensor | None]:
        """Return the coefficients of the first loop for the last direction, padded with None."""
        alphas = [] if self._alphas is None else self._as_scalars(self._alphas)
        return [*alphas, *[None] * (self._pairs.capacity - len(alphas))]

    def is_unchanged_in(self, state: dict[str, Any], capacity: int, like: Tensor) -> bool:
        """Tell whether a state still holds what `write_to` wrote, with its tensors unchanged."""
        rows_now = [state["old_dirs"], state["old_stps"]]
        return (
            (capacity, _vector_key(like)) == (self._pairs.capacity, self._vector_key)
            and [len(rows) for rows in rows_now] == [len(rows) for rows in self._rows_in_state]
            and all(map(operator.is_, chain(*rows_now), chain(*self._rows_in_state)))
            and self._versions_in_state == self._pairs.versions()
        )

    def _as_scalars(self, values: Tensor) -> list[Tensor]:
        return list(values.to(self._like).unbind())


def _vector_key(vector: Tensor) -> tuple[Any, ...]:
    return vector.shape, vector.dtype, vector.device


def _solve(matrix: Tensor, vector: Tensor, *, upper: bool) -> Tensor:
    solution: Tensor = torch.linalg.solve_triangular(matrix, vector[:, None], upper=upper)
    return solution[:, 0]


_ROW_ALIGNMENT = 64  # elements, so that each row begins at a cache line
_INITIAL_ROWS = 16  # enough for a short run


class CurvaturePairs:
    """Two ring buffers of rows. When they are full, a new pair replaces the oldest.

    The matrices grow by doubling, so a short run needs no memory for a long history. One row of
    each matrix is always free. A pair is written to the free rows, and belongs to the history only
    after `accept`.
    """

    def __init__(self, capacity: int, like: Tensor) -> None:
        self.capacity = capacity
        self.numel = like.numel()
        self.oldest_row = 0
        self.count = 0
        stride = -(-self.numel // _ROW_ALIGNMENT) * _ROW_ALIGNMENT
        self.steps, self.changes = like.new_empty((0, stride)), like.new_empty((0, stride))
        self.reserve()

    @property
    def slots(self) -> int:
        """The number of rows, used or free."""
        return len(self.steps)

    def reserve(self) -> None:
        """Grow the matrices if there is no free row after the newest."""
        if self.count == self.slots or not self.slots:
            slots = min(max(_INITIAL_ROWS, 2 * self.slots), self.capacity + 1)
            self.steps = self._enlarged_matrix(self.steps, slots)
            self.changes = self._enlarged_matrix(self.changes, slots)

    def _enlarged_matrix(self, old: Tensor, slots: int) -> Tensor:
        matrix = old.new_empty((slots, old.shape[1]))
        matrix[: len(old)] = old
        return matrix

    def free_rows(self) -> tuple[Tensor, Tensor]:
        """Return the free rows for the next pair: its step, and the change of the gradient."""
        row = (self.oldest_row + self.count) % self.slots
        return self.steps[row, : self.numel], self.changes[row, : self.numel]

    def accept(self) -> None:
        """Add the pair in the free rows as the newest."""
        if self.count < self.capacity:
            self.count += 1
            self.reserve()
        else:
            self.oldest_row = (self.oldest_row + 1) % self.slots

    def slices(self, matrix: Tensor) -> list[Tensor]:
        """Return the used rows of a matrix, oldest first, as one or two contiguous slices."""
        end = self.oldest_row + self.count
        pieces = matrix[self.oldest_row : end], matrix[: max(end - self.slots, 0)]
        return [piece[:, : self.numel] for piece in pieces if len(piece)]

    def rows(self, matrix: Tensor) -> list[Tensor]:
        """Return the used rows of a matrix, oldest first."""
        return [row for each in self.slices(matrix) for row in each.unbind()]

    def versions(self) -> tuple[int, int]:
        """Return torch's version counters, which grow with every write by torch."""
        return self.steps._version, self.changes._version


def dots(slices: list[Tensor], vector: Tensor) -> Tensor:
    """Return the dot products of the rows of slices with a vector, in float64 on the CPU."""
    return torch.cat([torch.mv(rows, vector) for rows in slices]).to("cpu", torch.float64)


def add_weighted_rows(vector: Tensor, slices: list[Tensor], weights: Tensor) -> None:
    """Add a weighted sum of the rows of slices to a vector, in place."""
    split_weights = weights.to(vector).split([len(rows) for rows in slices])
    for rows, row_weights in zip(slices, split_weights, strict=True):
        vector.addmv_(rows.t(), row_weights)


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


class FlatParameters:
    """Concatenated parameters, complex numbers as pairs of reals, 16-bit numbers as float32."""

    def __init__(self, params: list[Tensor]) -> None:
        _check_params(params)
        check_storages({"a parameter": params})
        self._params = params
        self._real_params = [_as_real(param) for param in params]
        self._sizes = [real.numel() for real in self._real_params]
        self.device = params[0].device
        self.numel = sum(self._sizes)
        dtypes = (real.dtype for real in self._real_params)
        self.dtype = functools.reduce(torch.promote_types, dtypes, torch.float32)

    def gradient(self) -> Tensor:
        """Return a copy of the gradients; a parameter without a gradient has zeros."""
        grads = (param.grad for param in self._params)
        check_storages({"a gradient": [grad for grad in grads if grad is not None]})
        return self._concatenate([_real_gradient(param) for param in self._params])

    def values(self) -> Tensor:
        """Return a copy of the parameters."""
        return self._concatenate(self._real_params)

    def _concatenate(self, tensors: list[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in tensors]).to(self.dtype)

    def pieces(self, vector: Tensor) -> list[Tensor]:
        """Return views of a vector in the shapes of the parameters."""
        pieces = vector.split(self._sizes)
        return [
            piece.view(real.shape) for piece, real in zip(pieces, self._real_params, strict=True)
        ]

    def add(self, direction: Tensor, t: float) -> None:
        """Add `t * direction` to the parameters, in place."""
        for real, piece in zip(self._real_params, self.pieces(direction), strict=True):
            real.add_(piece, alpha=t)

    def place(self, start: Tensor, direction: Tensor, t: float) -> None:
        """Set the parameters to `start + t * direction`, in place."""
        pieces = zip(self._real_params, self.pieces(start), self.pieces(direction), strict=True)
        for real, origin, piece in pieces:
            torch.add(origin, piece, alpha=t, out=real)


def max_abs(vector: Tensor) -> float:
    """Return the largest absolute value; NaN if any element is NaN."""
    if not vector.numel():
        return 0.0
    lowest, highest = torch.aminmax(vector)
    return torch.maximum(-lowest, highest).item()


def _check_params(params: list[Tensor]) -> None:
    devices = sorted({str(param.device) for param in params})
    if len(devices) > 1:
        raise RuntimeError(
            f"LBFGS joins all parameters in one vector, so they must be on one device; "
            f"these are on {' and '.join(devices)}"
        )
    for param in params:
        if not is_plain_class(type(param)) and hasattr(param, "to_local"):
            raise RuntimeError(
                "LBFGS takes dot products of whole vectors, but each rank holds only a shard of a "
                f"{type(param).__name__}; give it parameters that are not sharded"
            )


def _as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _real_gradient(param: Tensor) -> Tensor:
    grad = param.grad
    if grad is None:
        grad = torch.zeros_like(param)
    elif grad.layout is not torch.strided:
        grad = grad.to_dense()
    return _as_real(grad.resolve_conj())
