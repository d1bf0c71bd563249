"""Numbers with bounds on their rounding errors; the evaluator computes with them.

A bound is the first-order effect of reordering and rounding every operation: each operand may be
off by a unit in the last place wherever it is used. A result that comes from a comparison or from
rounding, or that leaves its dtype's range, may differ by more. It is marked as not comparable.
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
_SMALL = {torch.float64: 1e-290, torch.float32: 1e-30, torch.bfloat16: 1e-30, torch.float16: 1e-4}
_LARGE = {torch.float64: 1e290, torch.float32: 1e30, torch.bfloat16: 1e30, torch.float16: 6e4}

_unsure: list[bool] = []
_plain_tensors: list[tuple[float, bool]] = [(DOUBLE, False)]  # arguments of `tensors_in`


@contextmanager
def watch_branches() -> Iterator[list[bool]]:
    """Yield a list that is not empty if a branch was taken that depends on rounding."""
    before = list(_unsure)
    _unsure.clear()
    try:
        yield _unsure
    finally:
        _unsure[:] = before


@contextmanager
def tensors_in(eps: float, without_axes: bool = False) -> Iterator[None]:
    """Let plain tensors, such as a state before its first step, have a dtype with this unit.

    A 0-dim tensor counts as a number, unless the parameter is 0-dim too (`without_axes`).
    """
    _plain_tensors.append((eps, without_axes))
    try:
        yield
    finally:
        _plain_tensors.pop()


def unit_beside(mask: Tensor) -> float:
    """Return the unit of a number that a mask chooses: a tensor's unit if the mask is a tensor."""
    return _plain_tensors[-1][0] if mask.ndim else DOUBLE


class Doubtful:
    """Truth values (`v`), and a mask of those that rounding cannot change (`sure`)."""

    __slots__ = ("sure", "v")

    def __init__(self, v: Tensor, sure: Tensor) -> None:
        self.v, self.sure = v, sure

    @property
    def ndim(self) -> int:
        """Return the number of axes, as a tensor does."""
        return self.v.ndim

    def __bool__(self) -> bool:
        if not bool(self.sure.all()):
            _unsure.append(True)
        return bool(self.v)


class Bounded:
    """Values (`v`), bounds (`e`), a mask of comparable values (`ok`), the dtype's unit (`eps`)."""

    __slots__ = ("e", "eps", "ok", "v")
    __array_priority__ = 1000

    def __init__(self, v: Tensor, e: Tensor = _ZERO, ok: Tensor = _TRUE, eps: float = DOUBLE):
        self.v, self.e, self.ok, self.eps = v, e, ok, eps

    # The evaluator uses these attributes of a tensor.
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

    def detach(self) -> Bounded:
        return self

    double = detach

    def to(self, dtype: torch.dtype) -> Bounded:
        """Return the numbers, rounded to a dtype."""
        if dtype == torch.float64:
            return self
        eps = torch.finfo(dtype).eps
        v = self.v.to(dtype).double()
        return Bounded(v, self.e + eps * v.abs(), self.ok, max(eps, self.eps))

    def __ne__(self, other: object) -> Any:
        return compare(lambda a, b: a != b, self, other)

    __hash__ = None  # type: ignore[assignment]

    def __radd__(self, other: Tensor) -> Bounded:
        return Bounded(other + self.v, self.e, self.ok, self.eps)


class Given(Bounded):
    """A parameter or gradient; a rule may compute with it in a narrower dtype than its own."""

    stored_dtype = torch.float64

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype that the parameter is stored in."""
        return self.stored_dtype


class Vanished(Bounded):
    """A number times 0. It is 0 by itself; in a sum, the other number may have been rounded."""


def is_zero(x: Bounded) -> bool:
    """Tell whether a number is exactly 0."""
    return x.ndim == 0 and not bool(x.v) and not bool(x.e)


def lift(x: Any) -> Bounded:
    """Return a number with bounds; a plain number is exact."""
    if isinstance(x, Bounded):
        return x
    value = torch.as_tensor(x).double()
    eps, without_axes = _plain_tensors[-1]
    is_tensor = value.ndim or (without_axes and isinstance(x, Tensor))
    return Bounded(value, eps=eps if is_tensor else DOUBLE)


def answers(x: Any) -> Doubtful:
    """Return doubtful answers; plain answers are sure."""
    return x if isinstance(x, Doubtful) else Doubtful(torch.as_tensor(x), _TRUE)


def in_range(v: Tensor, e: Tensor, ok: Tensor, eps: float) -> Bounded:
    """Return a result; its elements out of the dtype's range are not comparable."""
    dtype, size = _DTYPES[eps], v.abs()
    fits = (size < _LARGE[dtype]) & ((size > _SMALL[dtype]) | (v == 0)) & e.isfinite()
    return Bounded(v, e, ok & fits, eps)


def is_exact(a: Bounded, b: Bounded, result: Tensor) -> bool:
    """Tell whether plain arithmetic on two exact numbers is exact: all three are short doubles."""
    if a.eps > DOUBLE or b.eps > DOUBLE or bool((a.e + b.e).any()):
        return False
    return all(map(_is_short, (a.v, b.v, result)))


def _is_short(x: Tensor) -> bool:
    """Tell whether a number has at most 30 bits before the binary point and 10 after it."""
    return x.ndim == 0 and (n := abs(float(x)) * 1024) < 2**40 and n % 1 == 0


def operand(x: Bounded, eps: float) -> Tensor:
    """Return the bound of an operand of arithmetic; it may be rounded once more."""
    return x.e + eps * x.v.abs()


def as_compared(x: Bounded, eps: float) -> Tensor:
    """Return the bound of a comparison's operand, rounded to the other operand's dtype."""
    if isinstance(x, Vanished):
        return torch.zeros_like(x.e)
    if x.eps < eps and bool((x.v.to(_DTYPES[eps]).double() != x.v).any()):
        return x.e + eps * x.v.abs()
    return x.e


def compare(meaning: Any, a: Any, b: Any) -> Doubtful:
    """Compare two numbers; the answer is sure if they differ by more than their bounds."""
    a, b = lift(a), lift(b)
    eps = max(a.eps, b.eps)
    e = as_compared(a, eps) + as_compared(b, eps)
    sure = (((a.v - b.v).abs() > e) | (e == 0)) & a.ok & b.ok
    return Doubtful(meaning(a.v, b.v), sure)
