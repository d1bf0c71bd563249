"""Tensors with bounds on their rounding errors; the evaluator computes with them.

A bound is the first-order effect of reordering and rounding every operation: each operand may be
off by a unit in the last place wherever it is used. A result may differ by more if it comes from a
comparison or from rounding, or leaves its dtype's range. Then it is marked as not comparable.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

DOUBLE = torch.finfo(torch.float64).eps
_ZERO, _TRUE = torch.zeros((), dtype=torch.float64), torch.tensor(True)
_DTYPES = {
    torch.finfo(d).eps: d for d in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
}
# Between these magnitudes, results of a dtype are compared: neither underflow nor overflow is near.
_SMALL = {torch.float64: 1e-290, torch.float32: 1e-30, torch.bfloat16: 1e-30, torch.float16: 1e-4}
_LARGE = {torch.float64: 1e290, torch.float32: 1e30, torch.bfloat16: 1e30, torch.float16: 6e4}

_uncertain_branches: list[bool] = []
_plain_tensors: list[tuple[float, bool]] = [(DOUBLE, False)]  # arguments of `unit_of_plain_tensors`


@contextmanager
def watch_branches() -> Iterator[list[bool]]:
    """Yield a list that gets an element if the block takes a branch that depends on rounding."""
    before = list(_uncertain_branches)
    _uncertain_branches.clear()
    try:
        yield _uncertain_branches
    finally:
        _uncertain_branches[:] = before


@contextmanager
def unit_of_plain_tensors(eps: float, param_is_0_dim: bool = False) -> Iterator[None]:
    """Give plain tensors, such as a state before its first step, this unit in the last place.

    A 0-dim tensor is a number with float64's unit, unless the parameter is 0-dim too.
    """
    _plain_tensors.append((eps, param_is_0_dim))
    try:
        yield
    finally:
        _plain_tensors.pop()


def unit_selected_by(mask: Tensor) -> float:
    """Return the unit of a number that a mask selects: a tensor's unit if the mask has axes."""
    return _plain_tensors[-1][0] if mask.ndim else DOUBLE


class UncertainMask:
    """Truth values (`v`), and a mask of the values that rounding cannot change (`sure`)."""

    __slots__ = ("sure", "v")

    def __init__(self, v: Tensor, sure: Tensor) -> None:
        self.v, self.sure = v, sure

    @property
    def ndim(self) -> int:
        """Return the number of axes, as a tensor does."""
        return self.v.ndim

    def __bool__(self) -> bool:
        if not bool(self.sure.all()):
            _uncertain_branches.append(True)
        return bool(self.v)


class BoundedTensor:
    """Values (`v`), bounds (`e`), a mask of comparable values (`ok`), the dtype's unit (`eps`).

    `are_squares` tells that they are squares, or sums of squares: no lowering gets them below 0.
    """

    __slots__ = ("are_squares", "e", "eps", "ok", "v")
    __array_priority__ = 1000

    def __init__(self, v: Tensor, e: Tensor = _ZERO, ok: Tensor = _TRUE, eps: float = DOUBLE):
        self.v, self.e, self.ok, self.eps = v, e, ok, eps
        self.are_squares = False

    # The evaluator uses the following attributes of tensors.
    @property
    def ndim(self) -> int:
        return self.v.ndim

    @property
    def shape(self) -> torch.Size:
        return self.v.shape

    @property
    def device(self) -> torch.device:
        return self.v.device

    @property
    def dtype(self) -> torch.dtype:
        return _DTYPES[self.eps]

    def numel(self) -> int:
        return self.v.numel()

    def is_floating_point(self) -> bool:
        return True

    def detach(self) -> BoundedTensor:
        return self

    double = detach

    def to(self, dtype: torch.dtype) -> BoundedTensor:
        """Return the values rounded to a dtype, with larger bounds."""
        if dtype == torch.float64:
            return self
        eps = torch.finfo(dtype).eps
        v = self.v.to(dtype).double()
        return BoundedTensor(v, self.e + eps * v.abs(), self.ok, max(eps, self.eps))

    def __ne__(self, other: object) -> Any:
        return compare(lambda a, b: a != b, self, other)

    __hash__ = None  # type: ignore[assignment]

    def __radd__(self, other: Tensor) -> BoundedTensor:
        return BoundedTensor(other + self.v, self.e, self.ok, self.eps)


class ParamOrGrad(BoundedTensor):
    """A parameter or gradient; a rule may compute with it in a narrower dtype."""

    stored_dtype = torch.float64

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype that the parameter is stored in."""
        return self.stored_dtype


class ZeroProduct(BoundedTensor):
    """A product with 0: a comparison takes it as exactly 0, and a sum uses its bound."""


def is_zero(x: BoundedTensor) -> bool:
    """Tell whether a number is exactly 0."""
    return x.ndim == 0 and not bool(x.v) and not bool(x.e)


def lift(x: Any) -> BoundedTensor:
    """Return a number with bounds; a plain number is exact."""
    if isinstance(x, BoundedTensor):
        return x
    value = torch.as_tensor(x).double()
    eps, param_is_0_dim = _plain_tensors[-1]
    is_tensor = value.ndim or (param_is_0_dim and isinstance(x, Tensor))
    return BoundedTensor(value, eps=eps if is_tensor else DOUBLE)


def lift_mask(x: Any) -> UncertainMask:
    """Return truth values with a mask; plain truth values are sure."""
    return x if isinstance(x, UncertainMask) else UncertainMask(torch.as_tensor(x), _TRUE)


def result_in_range(v: Tensor, e: Tensor, ok: Tensor, eps: float) -> BoundedTensor:
    """Return a result; its elements out of the dtype's range are not comparable."""
    dtype, size = _DTYPES[eps], v.abs()
    fits = (size < _LARGE[dtype]) & ((size > _SMALL[dtype]) | (v == 0)) & e.isfinite()
    return BoundedTensor(v, e, ok & fits, eps)


def is_exact(a: BoundedTensor, b: BoundedTensor, result: Tensor) -> bool:
    """Tell whether arithmetic on two numbers is exact: operands and result have few bits."""
    if a.eps > DOUBLE or b.eps > DOUBLE or bool((a.e + b.e).any()):
        return False
    return all(map(_is_short, (a.v, b.v, result)))


def _is_short(x: Tensor) -> bool:
    """Tell whether a number has at most 30 bits before the binary point and 10 after it."""
    return x.ndim == 0 and (n := abs(float(x)) * 1024) < 2**40 and n % 1 == 0


def operand_bound(x: BoundedTensor, eps: float) -> Tensor:
    """Return the bound of an operand of arithmetic, which may be rounded once more."""
    return x.e + eps * x.v.abs()


def comparison_bound(x: BoundedTensor, eps: float) -> Tensor:
    """Return the bound of a comparison's operand, rounded to the other operand's dtype."""
    if isinstance(x, ZeroProduct):
        return torch.zeros_like(x.e)
    if x.eps < eps and bool((x.v.to(_DTYPES[eps]).double() != x.v).any()):
        return x.e + eps * x.v.abs()
    return x.e


def compare(meaning: Any, a: Any, b: Any) -> UncertainMask:
    """Compare two tensors; truth values are sure where numbers differ by more than their bounds."""
    a, b = lift(a), lift(b)
    eps = max(a.eps, b.eps)
    e = comparison_bound(a, eps) + comparison_bound(b, eps)
    sure = (((a.v - b.v).abs() > e) | (e == 0)) & a.ok & b.ok
    return UncertainMask(meaning(a.v, b.v), sure)
