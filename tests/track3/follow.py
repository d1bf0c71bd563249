"""Follow the steps of a result's spec with those in plain torch, and measure the difference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from track3.muons import Own, iterated
from track3.results import Result

import optgen
from optgen import use_lowering

SPECS = Path(__file__).parents[1] / "specs" / "track3"
ORTHOGONALIZE = "optgen.runtime.matrix_ops.orthogonalize"


def largest_difference(result: Result, lowering: Any) -> float:
    """Return the largest difference of an element of a parameter in any step."""
    generator = torch.Generator().manual_seed(3)

    def drawn(shape: Sequence[int]) -> Tensor:
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)

    right = [[drawn(shape) for shape in group.shapes] for group in result.groups]
    own: list[list[Own]] = [[{"start": p} for p in params] for params in right]
    params = [[p.clone().requires_grad_() for p in group] for group in right]
    optimizer = optgen.load(SPECS / f"{result.spec}.py")(
        [
            {"params": each, **group.options}
            for each, group in zip(params, result.groups, strict=True)
        ]
    )
    worst = 0.0
    for step in range(result.steps):
        for index, group in enumerate(result.groups):
            options = group.at(step / result.steps)
            optimizer.param_groups[index].update(options)
            for place, param in enumerate(params[index]):
                param.grad = drawn(param.shape)
                kept, before = own[index][place], right[index][place]
                after = group.step(before, param.grad.clone(), kept, options)
                right[index][place] = result.after(after, kept) if result.after else after
        with use_lowering(lowering), mock.patch(ORTHOGONALIZE, exact):
            optimizer.step()
        for group_params, expected in zip(params, right, strict=True):
            for param, wanted in zip(group_params, expected, strict=True):
                worst = max(worst, (param.detach() - wanted).abs().max().item())
    return worst


def exact(tensors: list[Tensor], coefficients: Any, steps: int, eps: float) -> list[Tensor]:
    """Make matrices orthogonal in the dtype that they have."""
    assert (*coefficients, steps, eps) == (2.0, -1.5, 0.5, 12, 1)
    return [iterated(x / x.norm().clamp(min=eps)) for x in tensors]
