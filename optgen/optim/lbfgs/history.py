"""The inverse Hessian that the last steps imply.

Torch applies it by two loops over the pairs (Nocedal and Wright, algorithm 7.4), two dot products
and two sums for each. The same loops, written for all pairs at once, are two triangular systems in
R = Sᵀ Y (Byrd, Nocedal and Schnabel, 1994), where S holds the steps and Y the changes of the
gradient: four products of a matrix with a vector, and one more for each new pair.
"""

import operator
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from optgen.optim.lbfgs.ring import Ring


class History:
    """The last pairs of a step and the change of the gradient along it, at most `capacity`."""

    def __init__(self, capacity: int, like: Tensor) -> None:
        self.capacity = capacity
        self._kind = _kind(like)
        self._like = like.new_empty(0)
        self._steps, self._changes = Ring(capacity, like), Ring(capacity, like)
        self._products = torch.zeros(0, 0, dtype=torch.float64)  # R, oldest pair first
        self._scale = 1.0
        self._alphas: Tensor | None = None  # of the last direction
        self._shown: list[list[Tensor]] = []
        self._versions = (0, 0)

    @classmethod
    def restored(cls, capacity: int, like: Tensor, state: dict[str, Any]) -> "History":
        """The history that a state presents."""
        history = cls(capacity, like)
        _fill(history._steps, state["old_stps"][-capacity:])
        _fill(history._changes, state["old_dirs"][-capacity:])
        history._products = history._steps.products(history._changes).triu()
        history._scale = float(state["H_diag"])
        return history

    def append(self, direction: Tensor, t: float, change: Tensor, curvature: float) -> None:
        """Take in a step `t * direction` and the change of the gradient, whose product is known."""
        self._steps.reserve()
        self._changes.reserve()
        torch.mul(direction, t, out=self._steps.next())
        self._changes.next().copy_(change)
        full = len(self._products) == self.capacity
        kept = self._products[1:, 1:] if full else self._products
        column = self._steps.dots(change)
        self._products = torch.zeros(len(column), len(column), dtype=torch.float64)
        self._products[: len(kept), : len(kept)] = kept
        self._products[:, -1] = column
        self._scale = curvature / change.dot(change).item()

    def direction(self, gradient: Tensor, out: Tensor, scratch: Tensor) -> Tensor:
        """Minus the inverse Hessian times the gradient."""
        upper = self._products
        if not len(upper):
            return torch.mul(gradient, -self._scale, out=out)
        alphas = _solve(upper, self._steps.dots(gradient), upper=True)
        rest = self._changes.plus_rows(gradient, alphas, alpha=-1, beta=1, out=scratch)
        betas = upper.diagonal() * alphas - self._scale * self._changes.dots(rest)
        weights = _solve(upper.mT, betas, upper=False)
        self._alphas = -alphas
        return self._steps.plus_rows(rest, weights, alpha=-1, beta=-self._scale, out=out)

    def present(self, state: dict[str, Any]) -> None:
        """Put the history into a state as torch does; the vectors are rows of the matrices."""
        self._shown = [self._changes.rows(), self._steps.rows()]
        self._versions = self._written()
        state["old_dirs"], state["old_stps"] = map(list, self._shown)
        state["ro"] = self._numbers(1 / self._products.diagonal())
        state["H_diag"] = self._like.new_tensor(self._scale) if len(self._products) else 1

    def alphas(self) -> list[Tensor | None]:
        """The coefficients of the last direction in its first loop, in torch's layout."""
        alphas = [] if self._alphas is None else self._numbers(self._alphas)
        return [*alphas, *[None] * (self.capacity - len(alphas))]

    def presented_in(self, state: dict[str, Any], capacity: int, like: Tensor) -> bool:
        """Tell whether a state shows this history, and nobody has written to it since."""
        shown = [state["old_dirs"], state["old_stps"]]
        return (
            (capacity, _kind(like)) == (self.capacity, self._kind)
            and [len(rows) for rows in shown] == [len(rows) for rows in self._shown]
            and all(map(operator.is_, chain(*shown), chain(*self._shown)))
            and self._versions == self._written()
        )

    def _written(self) -> tuple[int, int]:
        return self._steps.version(), self._changes.version()

    def _numbers(self, values: Tensor) -> list[Tensor]:
        return list(values.to(self._like).unbind())


def _kind(vector: Tensor) -> tuple[Any, ...]:
    return vector.shape, vector.dtype, vector.device


def _solve(matrix: Tensor, right: Tensor, *, upper: bool) -> Tensor:
    solution: Tensor = torch.linalg.solve_triangular(matrix, right[:, None], upper=upper)
    return solution[:, 0]


def _fill(ring: Ring, rows: list[Tensor]) -> None:
    for row in rows:
        ring.reserve()
        ring.next().copy_(row)
