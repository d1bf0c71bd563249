"""Make equal parameters and gradients for two optimizers, and compare the results."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer

SHAPES = ((3, 4), (), (0,), (2, 3, 2), (1,))


def parameters(dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    """Return parameters of several shapes: 0-dim, empty, and one that is not contiguous."""
    torch.manual_seed(seed)
    params = [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in SHAPES]
    transposed = torch.randn(5, 4, dtype=dtype).T
    return [*params, torch.nn.Parameter(transposed)]


def steps_with_gradients(params: list[Tensor], steps: int, seed: int = 1) -> Iterator[int]:
    """Give gradients to most of the parameters before each step, and yield the step's number."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        for index, param in enumerate(params):
            grad = torch.randn(param.shape, dtype=torch.float64, generator=generator)
            if param.is_complex():
                grad = torch.complex(grad, grad.flip(0) if grad.dim() else grad)
            param.grad = None if (step + index) % 5 == 4 else grad.to(param.dtype)
        yield step


def train(optimizer: Optimizer, params: list[Tensor], steps: int, seed: int = 1) -> None:
    """Take some steps."""
    for _ in steps_with_gradients(params, steps, seed):
        optimizer.step()


def error(actual: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest deviation of a tensor, in units of its largest element."""
    pairs = [(a, b) for a, b in zip(actual, expected, strict=True) if b.numel()]
    return max((((a - b).abs().max() / b.abs().max()).item() for a, b in pairs), default=0.0)


def states(optimizer: Optimizer) -> list[Tensor]:
    """Return all tensors of an optimizer's state, in order."""
    return [value for entry in optimizer.state.values() for value in entry.values()]
