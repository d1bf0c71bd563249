"""Covariances of the inputs of a model's layers, which result 15 reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class InputCovariances:
    """Measures the mean of x xᵀ over a layer's inputs x, in every `interval`-th step.

    Inputs of a layer with fewer outputs than inputs are in blocks as long as the outputs.
    """

    def __init__(self, model: nn.Module, interval: int | None) -> None:
        self.layers = [x for x in model.modules() if isinstance(x, nn.Linear)]
        self.interval = interval
        self.measured: dict[Tensor, Tensor] = {}

    @contextmanager
    def measure(self, step: int) -> Iterator[None]:
        """Measure the inputs of the last forward pass in the context, if it is time for it."""
        self.measured.clear()
        layers = self.layers if self.interval and (step + 1) % self.interval == 0 else []
        hooks = [layer.register_forward_pre_hook(self._keep) for layer in layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def _keep(self, layer: nn.Module, inputs: tuple[Tensor]) -> None:
        x, weight = inputs[0].flatten(0, -2), layer.get_parameter("weight")
        is_in_block = block_means(weight) > 0
        self.measured[weight] = torch.where(is_in_block, x.T @ x / len(x), 0)

    def arguments(self, optimizer: torch.optim.Optimizer) -> dict[str, list[Tensor]]:
        """Return the arguments of `step`: none in a step without measurements."""
        if not self.measured:
            return {}
        params = [param for group in optimizer.param_groups for param in group["params"]]
        return {
            "input_covariance": [self.measured[param] for param in params],
            "input_blocks": [block_means(param) for param in params],
        }


def block_means(weight: Tensor) -> Tensor:
    """Return a matrix whose product with a vector repeats the mean of each block in the block.

    Args:
        weight: the weights of a layer, of the shape (outputs, inputs).

    Returns:
        A matrix of the shape (inputs, inputs).
    """
    outputs, inputs = weight.shape
    block = min(outputs, inputs)
    ones = torch.ones(block, block, dtype=weight.dtype, device=weight.device)
    return torch.block_diag(*[ones / block] * (inputs // block))
