"""Train the Schedule-Free optimizers, whose programs exchange two points."""

from __future__ import annotations

from typing import Any

import torch
from interpreter import INTERPRETED
from spec_files import spec_file
from torch import Tensor

import optgen

ADAMW = optgen.load(spec_file("schedule_free_adamw"))
SGD = optgen.load(spec_file("schedule_free_sgd"))
LOWERINGS = ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu")
SHAPES = ((3, 4), (), (2, 3, 2), (1,))


def parameters(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in SHAPES]


def gradient(point: Tensor, step: int) -> Tensor:
    return torch.cos(point.detach() * (step + 1))


def train(optimizer: Any, steps: int, start: int = 0) -> None:
    for step in range(start, start + steps):
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.grad = gradient(param, step)
        optimizer.step()


def param_values(optimizer: Any) -> list[Tensor]:
    """Return copies of an optimizer's parameters."""
    return [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]


def check_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for tensor, expected_tensor in zip(found, expected, strict=True):
        torch.testing.assert_close(tensor.detach(), expected_tensor, rtol=1e-10, atol=1e-10)
