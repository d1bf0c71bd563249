"""Two optimizers of equal parameters: one on emulated devices, one on the CPU as the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_cases import bound_of
from optgen import use_lowering

SHAPES = ((40, 30), (300,), (7,))
LARGEST_ERROR = {torch.float64: 1e-12, torch.float32: 1e-6}


def draw(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return normal numbers on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


class Twins:
    """An optimizer on emulated devices, and the for-loop on the CPU that starts from the same.

    Args:
        cls: The class of both optimizers.
        shapes: The shapes of the parameters.
        devices: The devices; each has parameters of all shapes.
        dtype: The dtype of the parameters on the devices; the oracle computes in float64.
        options: Arguments for the optimizer on the devices.
    """

    def __init__(
        self,
        cls: Any,
        shapes: Sequence[tuple[int, ...]] = SHAPES,
        devices: Sequence[str] = ("cuda:0",),
        dtype: torch.dtype = torch.float64,
        **options: Any,
    ) -> None:
        places = [(device, shape) for device in devices for shape in shapes]
        values = [draw(shape, seed, dtype) for seed, (_, shape) in enumerate(places)]
        pairs = zip(values, places, strict=True)
        self.params = [value.to(device).requires_grad_() for value, (device, _) in pairs]
        self.host_params = [value.double().requires_grad_() for value in values]
        self.optimizer, self.oracle = cls(self.params, **options), cls(self.host_params)
        self.limit = max(LARGEST_ERROR[dtype], bound_of(cls.__name__))

    def give_gradients(self, step: int, scale: float = 1.0, in_place: bool = False) -> None:
        """Give both optimizers the gradients of a step; the devices' are multiplied by `scale`.

        They are new tensors, or written into the ones that are there.
        """
        for index, (param, host_param) in enumerate(
            zip(self.params, self.host_params, strict=True)
        ):
            value = draw(tuple(param.shape), 1000 * (step + 1) + index, param.dtype)
            host_param.grad = value.double()
            scaled = (value * scale).to(param.device)
            if in_place and param.grad is not None:
                param.grad.copy_(scaled)
            else:
                param.grad = scaled

    def set(self, **values: Any) -> None:
        """Set values of the groups of both optimizers."""
        for optimizer in (self.optimizer, self.oracle):
            for group in optimizer.param_groups:
                group.update(values)

    def step_oracle(self) -> None:
        """Take the step that the devices take, on the CPU."""
        with use_lowering("forloop"):
            self.oracle.step()

    def step(self) -> None:
        """Take a step of both optimizers."""
        self.optimizer.step()
        self.step_oracle()

    def train(self, steps: int, first: int = 0) -> None:
        """Take steps of both optimizers, each with new gradients."""
        for step in range(first, first + steps):
            self.give_gradients(step)
            self.step()

    def error(self) -> float:
        """Wait for all devices; return the largest error, relative to the largest element."""
        return largest_error(self.params, self.host_params)

    def check(self) -> None:
        """Check that the parameters on the devices are right."""
        assert self.error() <= self.limit


def largest_error(tensors: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Wait for all devices; return the largest error, relative to a tensor's largest element."""
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)
    errors = []
    for tensor, right in zip(tensors, expected, strict=True):
        error = (tensor.detach().cpu().double() - right.detach()).abs().max() / right.abs().max()
        errors.append(float("inf") if error.isnan() else error.item())
    return max(errors)
