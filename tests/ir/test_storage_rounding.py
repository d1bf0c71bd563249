"""Test the roundings to a parameter's dtype against torch's casts and `nextafter`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from optgen.ir.storage_rounding import rounded, rounded_at_random, rounded_down, rounded_up

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
EDGES = (0.0, -0.0, 1.0, -1.0, 65504.0, 65519.9, -65520.0, 1e39, -1e39, 1e-46, -1e-46, 2.0**-14)
EDGES += (2.0**-14 - 2.0**-25, -(2.0**-126) * 0.99, 3.4e38, float("inf"), -float("inf"))


def numbers() -> Tensor:
    """Return numbers of all sizes, and numbers at the edges of the dtypes' ranges."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(4000, generator=generator, dtype=torch.float64)
    sizes = torch.randint(-140, 135, (4000,), generator=generator)
    return torch.cat([spread * 2.0**sizes, torch.tensor(EDGES, dtype=torch.float64)])


def neighbours(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the numbers of a dtype around x, from a sorted list of all codes of 16 bits."""
    codes = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    every = codes.view(dtype).double()
    every = every[~every.isnan()].unique()
    above = torch.searchsorted(every, x)
    exact = every[above.clamp(max=len(every) - 1)] == x
    below = torch.where(exact, above, above - 1)
    return every[below], every[above]


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_directed_roundings_give_the_neighbours(dtype: torch.dtype) -> None:
    x, eps = numbers(), torch.tensor(torch.finfo(dtype).eps)
    below, above = neighbours(x, dtype)
    assert torch.equal(rounded_down(x, eps), below)
    assert torch.equal(rounded_up(x, eps), above)


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_a_rounding_at_random_goes_away_from_zero_below_a_chance(dtype: torch.dtype) -> None:
    x, eps = numbers(), torch.tensor(torch.finfo(dtype).eps)
    below, above = neighbours(x, dtype)
    near, far = torch.where(x < 0, above, below), torch.where(x < 0, below, above)
    part = torch.where(far == near, 0, (x - near) / (far - near))
    largest = torch.finfo(dtype).max
    for chance in (0.0, 0.25, 0.75, 1.0):
        is_far = (chance < part) & (x.abs() <= largest)
        found = rounded_at_random(x, torch.tensor(chance), eps)
        assert torch.equal(found, torch.where(is_far, far, near))
        assert torch.equal(found.isinf(), x.isinf())
        assert is_far.any() == (chance < 1)


def test_float32_is_rounded_to_as_well() -> None:
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
def test_the_nearest_is_what_a_store_keeps(dtype: torch.dtype) -> None:
    x, eps = numbers(), torch.tensor(torch.finfo(dtype).eps)
    assert torch.equal(rounded(x, eps), x.to(dtype).double())


def test_float64_stays() -> None:
    x, eps = numbers(), torch.tensor(torch.finfo(torch.float64).eps)
    for rounding in (rounded, rounded_down, rounded_up):
        assert torch.equal(rounding(x, eps), x)
    assert torch.equal(rounded_at_random(x, torch.tensor(0.5), eps), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_stays(dtype: torch.dtype) -> None:
    eps = torch.tensor(torch.finfo(dtype).eps)
    for rounding in (rounded, rounded_down, rounded_up):
        assert bool(rounding(torch.tensor(torch.nan, dtype=torch.float64), eps).isnan())
