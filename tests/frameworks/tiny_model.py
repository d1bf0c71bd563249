"""A tiny model that every framework can train, and a measure of how parameters differ."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

BATCH = 4  # samples; a quarter of the data
LR = 1e-2


class Model(nn.Module):
    """A network with matrices and vectors, in float64, so that rounding hides no difference."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2))
        self.body.to(dtype)

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.body(inputs.to(next(self.parameters()).dtype))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Data(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Points on both sides of a plane, the same in every process."""

    def __init__(self, size: int = 16) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(size, 6, generator=generator)
        self.labels = (self.inputs.sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


def weights(model: nn.Module) -> list[Tensor]:
    """Return copies of the parameters."""
    return [param.detach().clone() for param in model.parameters()]


def deviation(actual: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    """Return the largest difference of two elements, divided by their tensor's largest element."""
    pairs = list(zip(actual, expected, strict=True))
    assert pairs
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
