"""Search along a direction for a point that satisfies the strong Wolfe conditions.

Nocedal and Wright, Numerical Optimization, 2nd edition: algorithm 3.5 widens a bracket until it
contains such a point, and algorithm 3.6 narrows it, both by cubic interpolation (equation 3.59).
The bounds of trials, and the test for a bracket that does not shrink, are those of torch, which has
them from minFunc.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

SUFFICIENT_DECREASE = 1e-4  # c1 of the sufficient decrease condition
CURVATURE = 0.9  # c2 of the curvature condition


@dataclass(frozen=True)
class Trial:
    """The function and its slope along the direction, at step length t."""

    t: float
    loss: float
    slope: float
    gradient: Tensor

    def reject_nonfinite(self) -> "Trial":
        """Return the trial, with an infinite loss if its loss or slope is not finite."""
        if math.isfinite(self.loss) and math.isfinite(self.slope):
            return self
        return replace(self, loss=math.inf)


class Bracket:
    """Two trials, between which lies a point that satisfies the conditions."""

    def __init__(self, one: Trial, other: Trial) -> None:
        self._ends = [one, other]
        self._low_index = 0
        self._find_low_end()

    def _find_low_end(self) -> None:
        self._low_index = 0 if self._ends[0].loss <= self._ends[1].loss else 1

    @property
    def low(self) -> Trial:
        """The end with the lower loss."""
        return self._ends[self._low_index]

    @property
    def high(self) -> Trial:
        """The end with the higher loss."""
        return self._ends[1 - self._low_index]

    def replace_high_end(self, trial: Trial) -> None:
        """Replace the end with the higher loss by a trial, which may now have the lower loss."""
        self._ends[1 - self._low_index] = trial
        self._find_low_end()

    def replace_low_end(self, trial: Trial) -> None:
        """Replace the end with the lower loss by a trial, and keep the end beyond the minimum."""
        if trial.slope * (self.high.t - self.low.t) >= 0:
            self._ends[1 - self._low_index] = self.low
        self._ends[self._low_index] = trial


class Search:
    """One line search. After the first trial, it makes at most `max_trials` further trials."""

    def __init__(
        self, evaluate_at: Callable[[float], Trial], start: Trial, max_trials: int
    ) -> None:
        self._evaluate_at = evaluate_at
        self._start = start.reject_nonfinite()
        self._max_trials = max(max_trials, 0)
        self._trials_made = 0

    def minimum(self, t: float, max_abs_direction: float, tolerance: float) -> Trial:
        """Return a trial that satisfies the conditions, or the best trial if the search stops.

        Args:
            t: The first step length to try.
            max_abs_direction: The largest change of a parameter at t = 1.
            tolerance: Stop if no parameter changes more than this across the bracket.
        """
        result = self._widen(t)
        if isinstance(result, Trial):
            return result
        return self._narrow(result, max_abs_direction, tolerance)

    def _widen(self, t: float) -> Trial | Bracket:
        """Return a bracket, or a trial that satisfies the conditions."""
        previous, trial = self._start, self._evaluate_at(t).reject_nonfinite()
        while self._trials_made < self._max_trials:
            if self._is_too_high(trial) or (self._trials_made > 1 and trial.loss >= previous.loss):
                return Bracket(previous, trial)
            if self._is_flat_enough(trial):
                return trial
            if trial.slope >= 0:
                return Bracket(previous, trial)
            nearest = trial.t + 0.01 * (trial.t - previous.t)
            t = cubic_minimum(previous, trial, nearest, 10 * trial.t)
            previous, trial = trial, self._make_trial(t)
        return Bracket(self._start, trial)

    def _narrow(self, bracket: Bracket, max_abs_direction: float, tolerance: float) -> Trial:
        was_close_to_end = False
        while self._trials_made < self._max_trials:
            left, right = sorted((bracket.low.t, bracket.high.t))
            if (right - left) * max_abs_direction < tolerance:
                break
            t = cubic_minimum(bracket.low, bracket.high, left, right)
            margin = 0.1 * (right - left)
            is_close_to_end = min(right - t, t - left) < margin
            if is_close_to_end and (was_close_to_end or t >= right or t <= left):
                t = right - margin if right - t < t - left else left + margin
                is_close_to_end = False
            was_close_to_end = is_close_to_end
            trial = self._make_trial(t)
            if self._is_too_high(trial) or trial.loss >= bracket.low.loss:
                bracket.replace_high_end(trial)
            elif self._is_flat_enough(trial):
                return trial
            else:
                bracket.replace_low_end(trial)
        return bracket.low

    def _make_trial(self, t: float) -> Trial:
        self._trials_made += 1
        return self._evaluate_at(t).reject_nonfinite()

    def _is_too_high(self, trial: Trial) -> bool:
        return trial.loss > self._start.loss + SUFFICIENT_DECREASE * trial.t * self._start.slope

    def _is_flat_enough(self, trial: Trial) -> bool:
        return abs(trial.slope) <= -CURVATURE * self._start.slope


def cubic_minimum(one: Trial, other: Trial, lower: float, upper: float) -> float:
    """Return the step length that minimizes the cubic through two trials, within the bounds."""
    left, right = (one, other) if one.t <= other.t else (other, one)
    d1 = left.slope + right.slope - ratio(3 * (left.loss - right.loss), left.t - right.t)
    discriminant = d1 * d1 - left.slope * right.slope
    if discriminant >= 0:
        d2 = math.sqrt(discriminant)
        share = ratio(right.slope + d2 - d1, right.slope - left.slope + 2 * d2)
        t = right.t - (right.t - left.t) * share
        if not math.isnan(t):
            return min(max(t, lower), upper)
    return (lower + upper) / 2


def ratio(numerator: float, denominator: float) -> float:
    """Return the IEEE quotient: infinite or NaN for a denominator of zero."""
    if denominator:
        return numerator / denominator
    return numerator * math.copysign(math.inf, denominator)
