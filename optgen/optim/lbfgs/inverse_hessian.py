"""Approximate the inverse Hessian by the last curvature pairs.

Torch multiplies by this matrix in two loops over the pairs (Nocedal and Wright, algorithm 7.4),
with two dot products and two sums for each pair. Written for all pairs at once, these loops are two
triangular systems in R = Sᵀ Y (Byrd, Nocedal and Schnabel, 1994), where S holds the steps and Y the
changes of the gradient. A direction takes four matrix-vector products, and one more after each new
pair. On a CPU, compiled code computes it in three passes over memory.
"""

import operator
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from optgen.optim.lbfgs.cpu_kernels import kernels_for
from optgen.optim.lbfgs.curvature_pairs import CurvaturePairs, add_weighted_rows, dots
from optgen.optim.lbfgs.flat_parameters import max_abs


class History:
    """The last curvature pairs, at most `capacity`, and the products of their vectors."""

    def __init__(self, capacity: int, like: Tensor) -> None:
        self._vector_key = _vector_key(like)
        self._like = like.new_empty(0)
        self._pairs = CurvaturePairs(capacity, like)
        self._kernels = kernels_for(like)
        self._products = torch.zeros(0, 0, dtype=torch.float64)  # R, oldest pair first
        self._lacks_last_column = False  # of R, until the next direction computes it
        self._scale = 1.0
        self._alphas: Tensor | None = None  # of the last direction
        self._rows_in_state: list[list[Tensor]] = []
        self._versions_in_state = (0, 0)

    @classmethod
    def from_state(cls, capacity: int, like: Tensor, state: dict[str, Any]) -> "History":
        """Return the history that an optimizer's state holds in torch's layout."""
        history = cls(capacity, like)
        pairs = history._pairs
        steps, changes = state["old_stps"][-capacity:], state["old_dirs"][-capacity:]
        for pair in zip(steps, changes, strict=True):
            for free, row in zip(pairs.free_rows(), pair, strict=True):
                free.copy_(row)
            pairs.accept()
        if pairs.count:
            left, right = pairs.steps[: pairs.count], pairs.changes[: pairs.count]
            products = torch.mm(left[:, : pairs.numel], right[:, : pairs.numel].t())
            history._products = products.to("cpu", torch.float64).triu()
        history._scale = float(state["H_diag"])
        return history

    def write_pair(
        self, gradient: Tensor, previous_gradient: Tensor, direction: Tensor, t: float
    ) -> tuple[float, float]:
        """Write the pair of a step `t * direction` to the free rows.

        Returns:
            The dot products of the gradient's change with the step and with itself.
        """
        if self._kernels:
            return self._kernels.write_pair(self._pairs, gradient, previous_gradient, direction, t)
        step, change = self._pairs.free_rows()
        torch.mul(direction, t, out=step)
        torch.sub(gradient, previous_gradient, out=change)
        return change.dot(step).item(), change.dot(change).item()

    def accept(self, scale: float) -> None:
        """Add the pair in the free rows, and set the scale of the inverse Hessian."""
        self._rows_in_state = []
        self._pairs.accept()
        count = self._pairs.count
        is_full = len(self._products) == count  # the new pair replaced the oldest
        old_products = self._products[1:, 1:] if is_full else self._products
        self._products = torch.zeros(count, count, dtype=torch.float64)
        self._products[: len(old_products), : len(old_products)] = old_products
        self._lacks_last_column = True
        self._scale = scale

    def compute_direction(
        self, gradient: Tensor, out: Tensor, scratch: Tensor
    ) -> tuple[float, float]:
        """Compute minus the inverse Hessian times the gradient, into `out`.

        `scratch` is a vector that is overwritten.

        Returns:
            The dot product of the direction with the gradient, and the largest magnitude in the
            direction.
        """
        lacks_last_column, self._lacks_last_column = self._lacks_last_column, False
        if self._kernels and self._pairs.count:
            alphas, slope, max_abs_direction = self._kernels.compute_direction(
                self._pairs, self._products, lacks_last_column, self._scale, gradient, out, scratch
            )
            self._alphas = -alphas  # torch's loop begins with minus the gradient
            return slope, max_abs_direction
        self._compute_direction_by_torch(lacks_last_column, gradient, out, scratch)
        return gradient.dot(out).item(), max_abs(out)

    def _compute_direction_by_torch(
        self, lacks_last_column: bool, gradient: Tensor, out: Tensor, scratch: Tensor
    ) -> None:
        if not self._pairs.count:
            torch.mul(gradient, -self._scale, out=out)
            return
        pairs = self._pairs
        steps, changes = pairs.slices(pairs.steps), pairs.slices(pairs.changes)
        products = self._products
        if lacks_last_column:
            newest_change = changes[-1][-1]
            products[:, -1] = dots(steps, newest_change)
        alphas = _solve(products, dots(steps, gradient), upper=True)
        scratch.copy_(gradient)
        add_weighted_rows(scratch, changes, -alphas)
        betas = products.diagonal() * alphas - self._scale * dots(changes, scratch)
        torch.mul(scratch, -self._scale, out=out)
        add_weighted_rows(out, steps, -_solve(products.mT, betas, upper=False))
        self._alphas = -alphas

    def write_to(self, state: dict[str, Any]) -> None:
        """Write the history to an optimizer's state in torch's layout.

        The vectors in the state are views of the rows of the matrices.
        """
        pairs = self._pairs
        self._rows_in_state = [pairs.rows(pairs.changes), pairs.rows(pairs.steps)]
        self._versions_in_state = pairs.versions()
        state["old_dirs"], state["old_stps"] = map(list, self._rows_in_state)
        state["ro"] = self._as_scalars(1 / self._products.diagonal())
        state["H_diag"] = self._like.new_tensor(self._scale) if pairs.count else 1

    def alphas(self) -> list[Tensor | None]:
        """Return the coefficients of the first loop for the last direction, padded with None."""
        alphas = [] if self._alphas is None else self._as_scalars(self._alphas)
        return [*alphas, *[None] * (self._pairs.capacity - len(alphas))]

    def is_unchanged_in(self, state: dict[str, Any], capacity: int, like: Tensor) -> bool:
        """Tell whether a state still holds what `write_to` wrote, with its tensors unchanged."""
        rows_now = [state["old_dirs"], state["old_stps"]]
        return (
            (capacity, _vector_key(like)) == (self._pairs.capacity, self._vector_key)
            and [len(rows) for rows in rows_now] == [len(rows) for rows in self._rows_in_state]
            and all(map(operator.is_, chain(*rows_now), chain(*self._rows_in_state)))
            and self._versions_in_state == self._pairs.versions()
        )

    def _as_scalars(self, values: Tensor) -> list[Tensor]:
        return list(values.to(self._like).unbind())


def _vector_key(vector: Tensor) -> tuple[Any, ...]:
    return vector.shape, vector.dtype, vector.device


def _solve(matrix: Tensor, vector: Tensor, *, upper: bool) -> Tensor:
    solution: Tensor = torch.linalg.solve_triangular(matrix, vector[:, None], upper=upper)
    return solution[:, 0]
