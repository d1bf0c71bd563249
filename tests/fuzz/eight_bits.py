"""Declare states of 8 bits in drawn rules, and bound how far rounding to codes moves them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from optgen.ir.algorithm import QUANTIZED, QUANTIZED_MAPS, Algorithm, State
from optgen.ir.quantization import nearest_shares
from optgen.spec import Spec
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec

if TYPE_CHECKING:
    from fuzz.oracle import Expected

_PLAIN = re.compile(
    r"""(=state\(["']\w+["'], init=[-\d.e]+)((?:, when=["']\w[\w ]*["'])?\),$)""", re.M
)
_MODERATE = (2.0**-80, 2.0**100)  # bounds of the scales of comparable blocks


def drawn(seed: str | int, text: str) -> str:
    """Return the text with codes in some states of the parameter's shape, now and then."""
    lot = Random(f"codes {seed}")
    if lot.random() > 0.15:
        return text
    code_map, least = lot.choice(QUANTIZED_MAPS), lot.choice((0, 0, 6))
    block = lot.choice((64, 256))
    options = f', dtype="{QUANTIZED}", block={block}, map="{code_map}", min_elements={least}'
    count = lot.choice((0, 0, 1))
    with_codes = _PLAIN.sub(rf"\g<1>{options}\g<2>", text, count)
    try:
        read_spec(Spec("Random", with_codes, "random.py", 1))
    except SpecError:  # a program takes the state, or gradients are sparse
        return text
    return with_codes


def in_float32(algorithm: Algorithm) -> Algorithm:
    """Return a rule whose states have float32 in place of codes."""
    states = tuple(
        replace(s, dtype="float32") if s.dtype == QUANTIZED else s for s in algorithm.states
    )
    return replace(algorithm, states=states)


def rounded(algorithm: Algorithm, values: Mapping[str, Expected]) -> dict[str, Expected]:
    """Return the values of a step; states of 8 bits are rounded to the numbers of their codes."""
    states = {s.key: s for s in algorithm.states if s.dtype == QUANTIZED}
    return {
        key: _rounded(expected, states[key])
        if key in states and expected.value.numel() >= states[key].min_elements
        else expected
        for key, expected in values.items()
    }


def _rounded(expected: Expected, state: State) -> Expected:
    """Return a state rounded to the numbers of codes.

    Where the bound reaches across the middle between two codes, either code is right, and the new
    bound covers both.
    """
    x, e = (_in_blocks(y, state.block) for y in (expected.value.float().double(), expected.bound))
    ok = _in_blocks(expected.comparable.double() - 1, state.block).amin(dim=1, keepdim=True) == 0
    scale, doubt = x.abs().amax(dim=1, keepdim=True), e.amax(dim=1, keepdim=True)
    usual = (scale > _MODERATE[0]) & (scale < _MODERATE[1]) & (doubt < scale / 4)
    scale = torch.where(usual, scale, 1.0)
    signed = (x < -e).any(dim=1, keepdim=True)

    def held(values: Tensor) -> Tensor:
        shares = (values.abs() / scale).clamp(max=1)
        nearest = nearest_shares(shares, state.map, not_zero=torch.zeros_like(shares).bool())
        return torch.copysign(nearest * scale, values)

    reach = e + x.abs() * doubt / scale
    value, low, high = held(x), held(x - reach), held(x + reach)
    smallest = scale * (2.0**-24 if state.map == "dynamic" else 1 / 127)
    value = torch.where(~signed & (value == 0) & (x > 0), smallest, value)
    bound = torch.maximum((low - value).abs(), (high - value).abs()) + 2 * doubt
    bound = bound + torch.where(signed, 0.0, smallest)
    zero = (x == 0).all(dim=1, keepdim=True) & (doubt < _MODERATE[0])
    parts = (value * ~zero, torch.where(zero, e, bound), (ok & (usual | zero)).expand(x.shape))
    unpadded = (
        part.flatten()[: expected.value.numel()].view(expected.value.shape) for part in parts
    )
    return replace(expected, **dict(zip(("value", "bound", "comparable"), unpadded, strict=True)))


def _in_blocks(x: Tensor, block: int) -> Tensor:
    return pad(x.flatten(), (0, -x.numel() % block)).view(-1, block)
