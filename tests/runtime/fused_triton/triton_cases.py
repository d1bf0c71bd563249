"""Tensors that a fused kernel must take: sizes around its block, and layouts of all kinds."""

from typing import Any

import torch
from torch import Tensor

SIZES = ((0,), (), (1,), (15,), (17,), (1024,), (1025,), (6, 7, 2))


def tensors(dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    """Return parameters: empty, 0-dim, whole and ragged blocks, unaligned, transposed, gaps."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    drawn = [draw(*size) for size in SIZES]
    drawn += [draw(1100)[1:1041], draw(20, 30).t(), draw(20, 60)[:, ::2]]
    drawn.append(draw(2, 4, 5, 6).to(memory_format=torch.channels_last))
    return [tensor.detach().requires_grad_() for tensor in drawn]


def set_gradients(params: list[Tensor], step: int, scale: float = 1.0) -> None:
    """Draw gradients; some parameters get none, and only the last one keeps the layout."""
    generator = torch.Generator().manual_seed(1000 + step)
    for i, param in enumerate(params):
        drawn = torch.randn(param.shape, generator=generator, dtype=torch.float64) * scale
        has_no_gradient = i % 2 == 1 and (i + step) % 5 == 0
        param.grad = None if has_no_gradient else drawn.to(param.dtype)
        if i == len(params) - 1 and param.grad is not None:
            param.grad = torch.empty_like(param).copy_(param.grad)


def two_groups(params: list[Tensor], second_options: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"params": params[::2]}, {"params": params[1::2], **second_options}]


def error(actual: Tensor, expected: Tensor) -> float:
    """Return the largest deviation, in units of the largest element."""
    if not actual.numel():
        return 0.0
    a, b = actual.detach().double(), expected.detach().double()
    return ((a - b).abs().max() / b.abs().max().clamp(min=1e-300)).item()


def largest_error(
    ours: list[Tensor], optimizer: Any, theirs: list[Tensor], reference: Any
) -> float:
    """Return the largest error of a parameter or state; keys and dtypes must be equal."""
    errors = []
    for param, expected in zip(ours, theirs, strict=True):
        errors.append(error(param, expected))
        states, expected_states = optimizer.state.get(param, {}), reference.state.get(expected, {})
        dtypes, expected_dtypes = (
            {key: value.dtype for key, value in each.items()} for each in (states, expected_states)
        )
        assert dtypes == expected_dtypes
        errors += [error(states[key], expected_states[key]) for key in states]
    return max(errors)
