"""A small residual network on scikit-learn's digits: 1,797 scanned digits of 8 by 8 pixels."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

CHANNELS = 8


class Block(nn.Module):
    """Two convolutions with batch norm beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels, momentum=0.3) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(inner)))


class Network(nn.Module):
    """A network whose pixels, whole numbers from 0 to 16, come in through an embedding."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.stem = nn.Embedding(17, CHANNELS, sparse=sparse)
        self.body = nn.Sequential(Block(CHANNELS), nn.MaxPool2d(2), Block(CHANNELS))
        self.hidden = nn.Linear(CHANNELS * 4 * 4, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.body(self.stem(pixels).permute(0, 3, 1, 2))
        return self.head(F.relu(self.hidden(x.flatten(1))))


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    """Return images and their labels."""
    dataset = load_digits()
    return torch.tensor(dataset.images, dtype=torch.int64), torch.tensor(dataset.target)


def batches(epochs: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield every image once an epoch, in an order that torch's seed decides."""
    images, labels = digits()
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(size):
            yield images[chosen], labels[chosen]


@torch.no_grad()
def final_loss(network: Network) -> float:
    """Return the loss over all images, with the running averages of batch norm."""
    images, labels = digits()
    return F.cross_entropy(network.eval()(images), labels).item()
