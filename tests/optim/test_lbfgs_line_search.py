"""Test the line search against torch's, on 1-D functions with waves, jumps and plateaus."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.lbfgs import _cubic_interpolate, _strong_wolfe

from optgen.optim.lbfgs.descent import Search, Trial, cubic_minimum, ratio

Function = Callable[[float], tuple[float, float]]
FINITE = st.floats(-1e3, 1e3, allow_subnormal=False)


def waves(a: float, b: float, c: float, w: float, grid: float) -> Function:
    """Return a function of t whose results are (value, slope). `grid` rounds values to multiples.

    A rounded function has jumps and plateaus.
    """

    def function(t: float) -> tuple[float, float]:
        value = a * t * t - b * t + c * math.sin(w * t)
        slope = 2 * a * t - b + c * w * math.cos(w * t)
        return (round(value / grid) * grid if grid else value), slope

    return function


def our_search(
    function: Function, t: float, max_trials: int, tolerance: float
) -> tuple[list[float], float]:
    """Return the trials of our search, and the point that it chooses."""
    trials: list[float] = []

    def trial(point: float) -> Trial:
        trials.append(point)
        return Trial(point, *function(point), gradient=torch.tensor([function(point)[1]]))

    start = Trial(0.0, *function(0.0), gradient=torch.tensor([function(0.0)[1]]))
    return trials, Search(trial, start, max_trials).minimum(t, 1.0, tolerance).t


def torchs_search(
    function: Function, t: float, max_trials: int, tolerance: float
) -> tuple[list[float], float]:
    """Return the trials of torch's search, and the point that it chooses."""
    trials: list[float] = []

    def evaluate(x: object, point: float, d: torch.Tensor) -> tuple[float, torch.Tensor]:
        trials.append(float(point))
        value, slope = function(float(point))
        return value, torch.tensor([slope], dtype=torch.float64)

    value, slope = function(0.0)
    gradient = torch.tensor([slope], dtype=torch.float64)
    found = _strong_wolfe(
        evaluate,
        None,
        t,
        torch.ones(1, dtype=torch.float64),
        value,
        gradient,
        gradient[0],
        tolerance_change=tolerance,
        max_ls=max_trials,
    )
    return trials, float(found[2])


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    st.floats(0.2, 3),
    st.floats(0.1, 10),
    st.floats(-2, 2),
    st.floats(0.1, 5),
    st.sampled_from([0.0, 0.0, 0.01, 0.5, 4.0]),
    st.sampled_from([0.001, 0.1, 1.0, 7.0, 60.0]),
    st.integers(0, 25),
    st.sampled_from([1e-9, 1e-2]),
)
def test_the_trials_are_torchs(
    a: float, b: float, c: float, w: float, grid: float, t: float, max_trials: int, tolerance: float
) -> None:
    function = waves(a, b, c, w, grid)
    if function(0.0)[1] >= 0:
        return  # not a descent direction
    trials, best = our_search(function, t, max_trials, tolerance)
    torchs_trials, torchs_best = torchs_search(function, t, max_trials, tolerance)

    assert trials == pytest.approx(torchs_trials, rel=1e-7)
    assert best == pytest.approx(torchs_best, rel=1e-7)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(FINITE, FINITE, FINITE, FINITE, FINITE, FINITE)
def test_the_minimum_of_a_cubic_is_torchs(
    x1: float, f1: float, g1: float, x2: float, f2: float, g2: float
) -> None:
    if x1 == x2:
        return
    first, second = Trial(x1, f1, g1, torch.empty(0)), Trial(x2, f2, g2, torch.empty(0))
    slopes = (torch.tensor(g, dtype=torch.float64) for g in (g1, g2))
    expected = float(_cubic_interpolate(x1, f1, next(slopes), x2, f2, next(slopes)))

    found = cubic_minimum(first, second, min(x1, x2), max(x1, x2))
    if not math.isnan(expected):
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert min(x1, x2) <= found <= max(x1, x2)
    assert cubic_minimum(second, first, min(x1, x2), max(x1, x2)) == found


@pytest.mark.parametrize(
    ("numerator", "denominator", "expected"),
    [(1.0, 2.0, 0.5), (1.0, 0.0, math.inf), (-1.0, 0.0, -math.inf), (1.0, -0.0, -math.inf)],
)
def test_a_ratio_with_denominator_0_is_that_of_floating_point(
    numerator: float, denominator: float, expected: float
) -> None:
    assert ratio(numerator, denominator) == expected
    assert torch.tensor(numerator) / torch.tensor(denominator) == expected


def test_a_ratio_of_zeros_is_not_a_number() -> None:
    assert math.isnan(ratio(0.0, 0.0))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("slope", [1.0, -1.0, math.nan])
def test_the_search_leaves_points_without_a_finite_value(value: float, slope: float) -> None:
    """The first trial has no finite value. The search bisects until it finds one."""

    def function(t: float) -> tuple[float, float]:
        return ((t - 0.5) ** 2, 2 * (t - 0.5)) if t < 2 else (value, slope)

    trials, best = our_search(function, 100.0, 25, 1e-9)

    assert best == pytest.approx(0.5, abs=0.5)
    assert len(trials) < 10


def test_a_search_that_finds_nothing_better_stays_at_the_start() -> None:
    """After the first trial, the search makes the six trials that `max_trials` allows."""
    trials, best = our_search(lambda t: (math.nan, -1.0) if t else (0.0, -1.0), 1.0, 6, 1e-9)

    assert best == 0.0
    assert len(trials) == 7
