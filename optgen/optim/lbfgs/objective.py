"""Evaluate a closure at the current parameters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from optgen.optim.lbfgs.flat_parameters import FlatParameters, max_abs

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
