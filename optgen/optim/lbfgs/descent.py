"""Take the iterations of a step: directions, a search along each, and calls of the closure.

The search finds a point that satisfies the strong Wolfe conditions. Nocedal and Wright, Numerical
Optimization, 2nd edition: algorithm 3.5 widens a bracket until it contains such a point, and
algorithm 3.6 narrows it, both by cubic interpolation (equation 3.59). The bounds of trials, and the
test for a bracket that does not shrink, are those of torch, which has them from minFunc.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from optgen.optim.lbfgs.history import FlatParameters, History, max_abs

MIN_CURVATURE = 1e-10  # a pair enters the history if (change · step) is larger


class Descent:
    """The iterations of one step, in torch's order and with torch's stopping criteria.

    Unlike torch's iterations, these stop before the parameters change if the gradient or a
    direction is not finite. If a closure raises, the state is still valid for the next step.
    """

    def __init__(
        self,
        group: dict[str, Any],
        state: dict[str, Any],
        objective: Objective,
        history: History,
        start: Evaluation,
    ) -> None:
        self._group, self._state = group, state
        self._objective, self._history = objective, history
        self._current_evaluation = start
        self._lr = float(group["lr"])
        self._iterations = 0
        gradient = start.gradient
        self._direction = _copy_or_empty(state.get("d"), gradient)
        self._previous_evaluation = Evaluation(
            0.0, _copy_or_empty(state.get("prev_flat_grad"), gradient)
        )
        self._scratch = torch.empty_like(gradient)
        self._slope = 0.0  # the dot product of the direction with the gradient
        self._max_abs_direction = 0.0
        self._t = float(state.get("t", 0.0))  # the step length

    def run(self) -> None:
        """Iterate until a stopping criterion holds, and write the state."""
        while self._iterations < self._group["max_iter"]:
            self._iterations += 1
            self._state["n_iter"] += 1
            self._choose_direction()
            descends = -math.inf < self._slope <= -self._group["tolerance_change"]
            if not descends:
                break
            try:
                self._advance()
            except BaseException:
                self._write_state()
                raise
            if self._should_stop():
                break
        self._write_state()

    def _choose_direction(self) -> None:
        """Add the last step to the history; choose the next direction and the step length."""
        gradient, direction = self._current_evaluation.gradient, self._direction
        is_first_iteration = self._state["n_iter"] == 1
        if not is_first_iteration:
            curvature, squared_change = self._history.write_pair(
                gradient, self._previous_evaluation.gradient, direction, self._t
            )
            if curvature > MIN_CURVATURE:
                self._history.accept(curvature / squared_change)
        self._slope, self._max_abs_direction = self._history.compute_direction(
            gradient, direction, self._scratch
        )
        self._previous_evaluation = self._current_evaluation
        self._t = self._lr
        if is_first_iteration:
            self._t *= min(1.0, ratio(1.0, gradient.abs().sum().item()))

    def _advance(self) -> None:
        """Move the parameters along the direction."""
        method = self._group["line_search_fn"]
        if method is not None:
            if method != "strong_wolfe":
                raise RuntimeError("only 'strong_wolfe' is supported")
            self._search_line()
            return
        self._objective.flat.add(self._direction, self._t)
        # After the last iteration, no gradient is needed: a step begins with an evaluation.
        if self._iterations != self._group["max_iter"]:
            self._current_evaluation = self._objective()

    def _search_line(self) -> None:
        flat = self._objective.flat
        start, direction = flat.values(), self._direction

        def evaluate_at(t: float) -> Trial:
            flat.place(start, direction, t)
            evaluation = self._objective()
            slope = evaluation.gradient.dot(direction).item()
            return Trial(t, evaluation.loss, slope, evaluation.gradient)

        first_trial = Trial(
            0.0, self._current_evaluation.loss, self._slope, self._current_evaluation.gradient
        )
        search = Search(
            evaluate_at, first_trial, self._group["max_eval"] - self._objective.call_count
        )
        t, self._t = self._t, 0.0  # if a closure raises, the parameters go back to t = 0
        try:
            best = search.minimum(t, self._max_abs_direction, self._group["tolerance_change"])
        except BaseException:
            flat.place(start, direction, 0.0)
            raise
        flat.place(start, direction, best.t)
        self._t = best.t
        self._current_evaluation = Evaluation(best.loss, best.gradient)

    def _should_stop(self) -> bool:
        group, tolerance = self._group, self._group["tolerance_change"]
        if self._iterations == group["max_iter"] or self._objective.call_count >= group["max_eval"]:
            return True
        max_abs_gradient = self._current_evaluation.max_abs_gradient
        return (
            not math.isfinite(max_abs_gradient)
            or max_abs_gradient <= group["tolerance_grad"]
            or self._max_abs_direction * abs(self._t) <= tolerance
            or abs(self._current_evaluation.loss - self._previous_evaluation.loss) < tolerance
        )

    def _write_state(self) -> None:
        state = self._state
        # The optimizer has counted the first evaluation.
        state["func_evals"] += self._objective.call_count - 1
        if state["n_iter"] > 1:
            state["al"] = self._history.alphas()
        state["d"], state["t"] = self._direction, self._t
        self._history.write_to(state)
        state["prev_flat_grad"] = self._previous_evaluation.gradient
        state["prev_loss"] = self._previous_evaluation.loss


def _copy_or_empty(stored: Tensor | None, like: Tensor) -> Tensor:
    """Return a copy of a vector of the state, with the dtype and device of `like`.

    If the state has no such vector, return uninitialized memory.
    """
    if stored is None:
        return torch.empty_like(like)
    return stored.to(like, copy=True)


SUFFICIENT_DECREASE = 1e-4  # c1 of the sufficient decrease condition
CURVATURE = 0.9  # c2 of the curvature condition


@dataclass(frozen=True)
class Trial:
    """The function and its slope along the direction, at step length t."""

    t: float
    loss: float
    slope: float
    gradient: Tensor

    def reject_nonfinite(self) -> Trial:
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


Closure = Callable[[], Any]


@dataclass(frozen=True)
class Evaluation:
    """The minimized function and its gradient at one point."""

    loss: float
    gradient: Tensor

    @property
    def max_abs_gradient(self) -> float:
        """The largest absolute value in the gradient."""
        return max_abs(self.gradient)


class Objective:
    """Function to minimize, made of a closure. The object counts calls and keeps the first loss."""

    def __init__(self, flat: FlatParameters, closure: Closure, maximize: bool) -> None:
        self.flat = flat
        self.call_count = 0
        self.first_loss: Any = None  # as the closure returned it
        self._closure = closure
        self._maximize = maximize

    def __call__(self) -> Evaluation:
        with torch.enable_grad():
            closure_result = self._closure()
        if closure_result is None:
            raise TypeError("LBFGS compares losses: the closure must return the loss, not None")
        if not self.call_count:
            self.first_loss = closure_result
        self.call_count += 1
        loss, gradient = float(closure_result), self.flat.gradient()
        return Evaluation(-loss, gradient.neg_()) if self._maximize else Evaluation(loss, gradient)
