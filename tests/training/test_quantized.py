"""Train a small transformer with quantized states: its losses equal those of float32 within noise.

The noise is the standard deviation of final losses in float32 over seeds, each with its own weights
and sequences.
"""

from __future__ import annotations

import statistics
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from optgen import compose, modifiers, optim

TOKENS, LENGTH, WIDTH = 23, 16, 64
STEPS = 60
SEEDS = (0, 1, 2)


class Transformer(nn.Module):
    """Two causal layers; matrices have 4,096 elements or more."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 128, dropout=0.0, batch_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, TOKENS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of the next tokens."""
        x = self.tokens(inputs) + self.positions.weight
        for layer in self.layers:
            x = layer(x, src_mask=self.mask, is_causal=True)
        logits: Tensor = self.head(x)
        return logits


def sequences(count: int) -> Tensor:
    """Return arithmetic progressions modulo the number of tokens; 5 % of the tokens are random."""
    start, slope = torch.randint(TOKENS, (count, 1)), torch.randint(1, 3, (count, 1))
    progressions = (start + slope * torch.arange(LENGTH + 1)) % TOKENS
    is_random = torch.rand(progressions.shape) < 0.05
    return torch.where(is_random, torch.randint(TOKENS, progressions.shape), progressions)


def final_loss(base: Any, seed: int, *chosen_modifiers: Any, **options: Any) -> float:
    """Return the mean loss of the last 15 steps."""
    torch.manual_seed(seed)
    network = Transformer()
    matrices = [p for p in network.layers.parameters() if p.ndim == 2]
    other_params = [p for p in network.parameters() if all(p is not matrix for matrix in matrices)]
    optimizers = [compose(base, *chosen_modifiers)(matrices, **options)]
    optimizers.append(compose(optim.AdamW, *chosen_modifiers)(other_params, lr=3e-3))
    losses = []
    for _ in range(STEPS):
        batch = sequences(16)
        loss = F.cross_entropy(network(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return statistics.mean(losses[-15:])


RATES = {"AdamW": 3e-3, "Muon": 0.02}


@cache
def losses_in_float32(name: str) -> list[float]:
    """Return the final loss for each seed."""
    return [final_loss(getattr(optim, name), seed, lr=RATES[name]) for seed in SEEDS]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("AdamW", "8bit"),
        ("AdamW", "4bit"),
        pytest.param("AdamW", "fp8", marks=pytest.mark.thorough),
        pytest.param("Muon", "8bit", marks=pytest.mark.thorough),
    ],
)
def test_losses_equal_those_of_float32_within_noise(name: str, dtype: str) -> None:
    quantized, base = modifiers.quantized(dtype, min_elements=1000), getattr(optim, name)
    losses = [final_loss(base, seed, quantized, lr=RATES[name]) for seed in SEEDS]
    noise = statistics.stdev(losses_in_float32(name))
    assert statistics.mean(losses_in_float32(name)) < 2.0
    assert abs(statistics.mean(losses) - statistics.mean(losses_in_float32(name))) < noise


@pytest.mark.parametrize(("options", "decays"), [({}, False), ({"exp_avg": "8bit"}, True)])
def test_a_momentum_of_4_bits_decays_only_with_8_bits(
    options: dict[str, Any], decays: bool
) -> None:
    """Half of a block has no gradients after its first step, as a rare row of an embedding."""
    moved = []
    for cls in (
        optim.AdamW,
        compose("adamw", modifiers.quantized("4bit", min_elements=0, **options)),
    ):
        generator = torch.Generator().manual_seed(0)
        param = torch.nn.Parameter(torch.zeros(128))
        optimizer = cls([param], lr=1e-3, weight_decay=0.0)
        for step in range(120):
            param.grad = torch.randn(128, generator=generator)
            if step:
                param.grad[:64] = 0
            optimizer.step()
        moved.append(param.detach()[:64].abs().mean())

    assert bool(moved[1] < 1.5 * moved[0]) == decays
