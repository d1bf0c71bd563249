"""Compose and train optimizers with states of 8 bits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from composition.training import give_gradients, parameters
from torch import Tensor

from optgen import compose, modifiers, use_lowering
from optgen.contract.quantization import QUANTIZATIONS
from optgen.runtime.tensors.quantized import QuantizedTensor
from optgen.verification.references.eight_bits import round_to_8_bits

SHAPES = ((40, 33), (129,), (20, 4, 3, 3), (7,))
"""The last has fewer than `MIN_ELEMENTS` elements, so its states are not quantized."""
MIN_ELEMENTS = 100
BLOCK = 64
STEPS = 4


def quantized_class(base: Any, code_map: str = "dynamic", **dtypes: str) -> Any:
    """Return a composition with quantized states. `dtypes` has the dtypes of other states."""
    dtype = next(name for name, each in QUANTIZATIONS.items() if code_map in each.maps)
    options = {"block": BLOCK, "map": code_map, "min_elements": MIN_ELEMENTS}
    return compose(base, modifiers.quantized(dtype, **options, **dtypes))


def step(optimizer: Any, params: Iterable[Tensor], seed: int, lowering: str = "foreach") -> None:
    give_gradients(params, seed)
    with use_lowering(lowering):
        optimizer.step()


def decoded(state: Tensor) -> Tensor:
    return state.dequantize() if isinstance(state, QuantizedTensor) else state


def round_states(states: dict[str, Tensor], code_map: str) -> None:
    """Round the states of a plain optimizer to codes, in place."""
    for key, value in states.items():
        if key != "step":
            large = value.numel() >= MIN_ELEMENTS
            value.copy_(round_to_8_bits(value, BLOCK, code_map) if large else value.float())


def train(cls: Any, **options: Any) -> tuple[Any, list[Tensor]]:
    """Return an optimizer after some steps, and its parameters."""
    params = parameters(SHAPES, torch.float32)
    optimizer = cls(params, **options)
    for seed in range(STEPS):
        give_gradients(params, seed)
        optimizer.step()
    return optimizer, params
