"""Run the iterations of one step, and write the optimizer's state."""

import math
from typing import Any

import torch
from torch import Tensor

from optgen.optim.lbfgs.inverse_hessian import History
from optgen.optim.lbfgs.line_search import Search, Trial, ratio
from optgen.optim.lbfgs.objective import Evaluation, Objective

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
