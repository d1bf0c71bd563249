"""A small transformer that predicts bytes: four blocks, 230 thousand weights.

The kinds of layers and the names of parameters are those of track 3's model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.track3.text import SYMBOLS

SCALES = {"attn.proj.weight": 1.25, "mlp.fc.weight": 1.5, "mlp.proj.weight": 3.0}
"""Factors of initial weights in the results on spheres. There a matrix of zeros would stay zero."""


class Norm(nn.Module):
    """A root mean square norm with gains."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gains = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.gains.shape) * self.gains


class Attention(nn.Module):
    """Causal attention. Queries and keys are normalized, and have rotary position embeddings."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(2, (self.heads, -1)) for part in (self.q, self.k, self.v))
        q, k = (apply_rotary_embedding(functional.rms_norm(y, y.shape[-1:])) for y in (q, k))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))


def apply_rotary_embedding(x: Tensor) -> Tensor:
    """Rotate each pair of a head's numbers by an angle that grows with the position (RoPE)."""
    first, second = x.chunk(2, dim=-1)
    rates = (1 / 128) ** torch.linspace(0, 1, first.size(-1))
    angles = torch.arange(x.size(1))[:, None, None] * rates
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1)


class Perceptron(nn.Module):
    """Two layers with a squared ReLU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc, self.proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(self.fc(x).relu().square())


class Block(nn.Module):
    """Attention and a perceptron: each takes a normalized input, and is added to the input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn, self.mlp = Attention(width, heads), Perceptron(width)
        self.norm1, self.norm2 = Norm(width), Norm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Predicts each next byte of a text."""

    def __init__(self, width: int = 64, blocks: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.proj = nn.Linear(width, SYMBOLS)

    def forward(self, bytes: Tensor) -> Tensor:
        x = self.norm1(self.embed(bytes))
        for block in self.blocks:
            x = block(x)
        logits = self.proj(self.norm2(x))
        return 15 * logits * (logits.square() + 15**2).rsqrt()

    def loss(self, bytes: Tensor, following: Tensor) -> Tensor:
        """Return the mean loss of the predictions, in nats."""
        return functional.cross_entropy(self(bytes).flatten(0, 1), following.flatten())

    @torch.no_grad()
    def set_initial_weights(self, scaled: bool) -> None:
        """Set the weights as the scripts do: projections to zeros, or to weights with SCALES."""
        for name, param in self.named_parameters():
            if name.endswith("bias"):
                param.zero_()
            elif name.endswith("embed.weight"):
                param.normal_()
            elif name.endswith("weight"):
                param.normal_(std=(0.33 / param.size(1)) ** 0.5)
            if name == "proj.weight" or ("proj" in name and not scaled):
                param.zero_()
            for part, scale in SCALES.items():
                if scaled and name.endswith(part):
                    param.mul_(scale)
