"""Define a case: one of our optimizers with options, and the reference to compare it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from optgen.verification.problem import Problem, Shapes
from optgen.verification.reference import Inputs, MakeReference

STEPS = 30
"""The default number of steps."""
BOUND = 1e-10
"""The default largest difference of an element."""
ANY_SHAPES: Shapes = ((5,), (4, 3), (), (2, 7), (2, 3, 4))
MATRICES: Shapes = ((5, 3), (3, 5), (4, 4), (5, 3), (1, 2))


@dataclass(frozen=True, eq=False)
class Case:
    """One of our optimizers with options, and the reference to compare it with."""

    name: str  # of the optimizer, in the catalogue
    make_reference: MakeReference
    options: Mapping[str, Any]  # of our class
    label: str = ""  # how it differs from other cases of the same name
    shapes: Shapes = ANY_SHAPES
    steps: int = STEPS
    bound: float = BOUND  # the largest difference that an element may have after any step
    # Returns the extra inputs of a step.
    inputs: Callable[[Problem, list[Tensor], int], Inputs] | None = None
    # Replaces our `orthogonalize`, which computes in bfloat16.
    orthogonalize: Callable[..., list[Tensor]] | None = None
    sparse_gradients: bool = False  # gradients hold only some of the rows
    with_closure: bool = False  # a step is handed a closure
    dtype: torch.dtype = torch.float64  # of our parameters; the reference has float64

    @property
    def problem(self) -> Problem:
        """The problem that both sides solve. With a closure, every step has the same data."""
        return Problem(self.shapes, same_data=self.with_closure)

    def __str__(self) -> str:
        return f"{self.name}, {self.label}" if self.label else self.name
