"""Test the roundings to a parameter's dtype against torch's casts and `nextafter`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from optgen.ir.rounding import rounded, rounded_at_random, rounded_down, rounded_up

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
EDGES = (0.0, -0.0, 1.0, -1.0, 65504.0, 65519.9, -65520.0, 1e39, -1e39, 1e-46, -1e-46, 2.0**-14)
EDGES += (2.0**-14 - 2.0**-25, -(2.0**-126) * 0.99, 3.4e38, float("inf"), -float("inf"))


def numbers() -> Tensor:
    """Return numbers of all magnitudes, and numbers at the edges of the dtypes' ranges."""
    generator = torch.Generator().manual_seed(0)
    mantissas = torch.randn(4000, generator=generator, dtype=torch.float64)
    exponents = torch.randint(-140, 135, (4000,), generator=generator)
    return torch.cat([mantissas * 2.0**exponents, torch.tensor(EDGES, dtype=torch.float64)])


def neighbours(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return x rounded down and up to a 16-bit dtype, found in a sorted list of its numbers."""
    codes = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    representable = codes.view(dtype).double()
    representable = representable[~representable.isnan()].unique()
    above = torch.searchsorted(representable, x)
    exact = representable[above.clamp(max=len(representable) - 1)] == x
    below = torch.where(exact, above, above - 1)
    return representable[below], representable[above]


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_directed_roundings_give_the_neighbours(dtype: torch.dtype) -> None:
    x, eps = numbers(), torch.tensor(torch.finfo(dtype).eps)
    below, above = neighbours(x, dtype)
    assert torch.equal(rounded_down(x, eps), below)
    assert torch.equal(rounded_up(x, eps), above)


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_a_small_random_number_rounds_away_from_zero(dtype: torch.dtype) -> None:
    """x is rounded away from zero if the number is below x's position between its neighbours."""
    x, eps = numbers(), torch.tensor(torch.finfo(dtype).eps)
    below, above = neighbours(x, dtype)
    near, far = torch.where(x < 0, above, below), torch.where(x < 0, below, above)
    position = torch.where(far == near, 0, (x - near) / (far - near))
    largest = torch.finfo(dtype).max
    for number in (0.0, 0.25, 0.75, 1.0):
        is_far = (number < position) & (x.abs() <= largest)
        found = rounded_at_random(x, torch.tensor(number), eps)
        assert torch.equal(found, torch.where(is_far, far, near))
        assert torch.equal(found.isinf(), x.isinf())
        assert is_far.any() == (number < 1)


def test_directed_roundings_give_the_float32_neighbours() -> None:
    x, eps = numbers(), torch.tensor(torch.finfo(torch.float32).eps)
    down, up = rounded_down(x, eps), rounded_up(x, eps)
    assert torch.equal(down, down.float().double())
    assert torch.equal(up, up.float().double())
    assert bool(((down <= x) & (x <= up)).all())
    infinite = torch.tensor(torch.inf)
    inexact = down.isfinite() & up.isfinite() & (down != up)
    assert torch.equal(torch.nextafter(down.float(), infinite)[inexact].double(), up[inexact])
    assert torch.equal(down[down == up], x[down == up])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounded_equals_a_cast(dtype: torch.dtype) -> None:
    x, eps = numbers(), torch.tensor(torch.finfo(dtype).eps)
    assert torch.equal(rounded(x, eps), x.to(dtype).double())


def test_float64_is_not_rounded() -> None:
    x, eps = numbers(), torch.tensor(torch.finfo(torch.float64).eps)
    for rounding in (rounded, rounded_down, rounded_up):
        assert torch.equal(rounding(x, eps), x)
    assert torch.equal(rounded_at_random(x, torch.tensor(0.5), eps), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_is_rounded_to_nan(dtype: torch.dtype) -> None:
    eps = torch.tensor(torch.finfo(dtype).eps)
    for rounding in (rounded, rounded_down, rounded_up):
        assert bool(rounding(torch.tensor(torch.nan, dtype=torch.float64), eps).isnan())
