"""The problem of a comparison: least squares, whose gradients depend on the parameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

Shapes = tuple[tuple[int, ...], ...]
LARGE_NOISE = 20.0
"""The size of the noise in every fifth step, so that clipping takes effect; else it is 1."""


@dataclass(frozen=True)
class Problem:
    """Least squares for each parameter, with new data in every step.

    A parameter is a matrix here, with its first axis as rows. A step draws data X and Y, and the
    loss is |X p - Y|² / 2n, for n rows of X. Every number is in float64 on the CPU.
    """

    shapes: Shapes
    same_data: bool = False  # every step has the data of the first step

    def initial_params(self) -> list[Tensor]:
        """Return the parameters before the first step."""
        generator = torch.Generator().manual_seed(100)
        return [_normal(shape, generator) for shape in self.shapes]

    def gradients(self, params: list[Tensor], step: int) -> list[Tensor]:
        """Return the gradients at these parameters. Steps count from 1."""
        gradients = []
        for param, (x, y) in zip(params, self._data(step), strict=True):
            residual = x @ param.reshape(x.size(1), -1) - y
            gradients.append((x.mT @ residual / len(x)).reshape(param.shape))
        return gradients

    def loss(self, params: list[Tensor], step: int) -> Tensor:
        """Return the loss at these parameters."""
        total = torch.zeros((), dtype=torch.float64)
        for param, (x, y) in zip(params, self._data(step), strict=True):
            residual = x @ param.reshape(x.size(1), -1) - y
            total = total + residual.square().sum() / 2 / len(x)
        return total

    def hessian_diagonals(self, params: list[Tensor], step: int) -> list[Tensor]:
        """Return a positive estimate of the Hessian's diagonal that depends on the parameters."""
        diagonals = []
        for param, (x, _) in zip(params, self._data(step), strict=True):
            matrix = param.reshape(x.size(1), -1)
            diagonal = x.square().mean(0)[:, None] * (1 + 0.1 * matrix.square())
            diagonals.append(diagonal.reshape(param.shape))
        return diagonals

    def _data(self, step: int) -> list[tuple[Tensor, Tensor]]:
        return _draw_data(self.shapes, 1 if self.same_data else step)


@cache
def _draw_data(shapes: Shapes, step: int) -> list[tuple[Tensor, Tensor]]:
    """Draw X and Y of each parameter for a step."""
    generator = torch.Generator().manual_seed(step)
    noise = LARGE_NOISE if step % 5 == 0 else 1.0
    data = []
    for shape in shapes:
        rows = shape[0] if shape else 1
        cols = int(torch.Size(shape).numel()) // rows
        equations = rows + 3  # more than unknowns
        x = _normal((equations, rows), generator)
        y = x.sum(1, keepdim=True) + noise * _normal((equations, cols), generator)
        data.append((x, y))
    return data


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)
