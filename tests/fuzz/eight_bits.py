"""Declare quantized states in drawn rules, and bound how far rounding to codes moves them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from optgen.contract.quantization import CODE_MAPS, QUANTIZATIONS
from optgen.ir.algorithm import Algorithm, State
from optgen.ir.rounding import nearest_shares
from optgen.spec import Spec
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec

if TYPE_CHECKING:
    from fuzz.oracle import Expected

_STATE_LIKE_PARAM = re.compile(
    r"""(=state\(["']\w+["'], init=[-\d.e]+)((?:, when=["']\w[\w ]*["'])?\),$)""", re.M
)
_MIN_SCALE, _MAX_SCALE = 2.0**-80, 2.0**100  # scales of blocks that can be compared


def add_8_bit_states(seed: str | int, text: str) -> str:
    """Return the text, for some seeds with quantized states of the parameter's shape."""
    rng = Random(f"codes {seed}")
    if rng.random() > 0.15:
        return text
    formats = [(dtype, each) for dtype in QUANTIZATIONS for each in QUANTIZATIONS[dtype].maps]
    (dtype, code_map), min_elements = rng.choice(formats), rng.choice((0, 0, 6))
    block = rng.choice((64, 256))
    options = f', dtype="{dtype}", block={block}, map="{code_map}", min_elements={min_elements}'
    max_states = rng.choice((0, 0, 1))  # 0: all states
    with_codes = _STATE_LIKE_PARAM.sub(rf"\g<1>{options}\g<2>", text, max_states)
    try:
        read_spec(Spec("Random", with_codes, "random.py", 1))
    except SpecError:  # a program takes the state, or gradients are sparse
        return text
    return with_codes


def with_float32_states(algorithm: Algorithm) -> Algorithm:
    """Return the rule with float32 states in place of quantized states."""
    states = tuple(replace(s, dtype="float32") if s.is_quantized else s for s in algorithm.states)
    return replace(algorithm, states=states)


def round_to_codes(algorithm: Algorithm, values: Mapping[str, Expected]) -> dict[str, Expected]:
    """Return the values of a step; quantized states are rounded to the numbers of their codes."""
    states = {s.key: s for s in algorithm.states if s.is_quantized}
    return {
        key: _round_state(expected, states[key])
        if key in states and expected.value.numel() >= states[key].min_elements
        else expected
        for key, expected in values.items()
    }


def _round_state(expected: Expected, state: State) -> Expected:
    """Return a state rounded to the numbers of codes.

    If the bound of an element includes the middle between two codes, both codes are right, and the
    new bound covers both.
    """
    x, e = (_in_blocks(y, state.block) for y in (expected.value.float().double(), expected.bound))
    ok = _in_blocks(expected.comparable.double() - 1, state.block).amin(dim=1, keepdim=True) == 0
    scale, scale_error = x.abs().amax(dim=1, keepdim=True), e.amax(dim=1, keepdim=True)
    is_moderate = (scale > _MIN_SCALE) & (scale < _MAX_SCALE) & (scale_error < scale / 4)
    scale = torch.where(is_moderate, scale, 1.0)
    has_negative = (x < -e).any(dim=1, keepdim=True)
    may_have_signs = ((x - e < 0) | x.signbit()).any(dim=1, keepdim=True)
    if CODE_MAPS[state.map].bits < 8:  # such a block has other shares without signs
        ok = ok & (has_negative | ~may_have_signs)

    def round_to_code(values: Tensor) -> Tensor:
        shares = (values.abs() / scale).clamp(max=1)
        nearest = nearest_shares(shares, state.map, has_negative)
        return torch.copysign(nearest * scale, values)

    code_error = e + x.abs() * scale_error / scale
    value, low, high = map(round_to_code, (x, x - code_error, x + code_error))
    # the number of the smallest code above 0
    smallest = scale * CODE_MAPS[state.map].smallest / CODE_MAPS[state.map].largest
    value = torch.where(~has_negative & (value == 0) & (x > 0), smallest, value)
    bound = torch.maximum((low - value).abs(), (high - value).abs()) + 2 * scale_error
    bound = bound + torch.where(has_negative, 0.0, smallest)
    is_zero_block = (x == 0).all(dim=1, keepdim=True) & (scale_error < _MIN_SCALE)
    parts = (
        value * ~is_zero_block,
        torch.where(is_zero_block, e, bound),
        (ok & (is_moderate | is_zero_block)).expand(x.shape),
    )
    unpadded = (
        part.flatten()[: expected.value.numel()].view(expected.value.shape) for part in parts
    )
    return replace(expected, **dict(zip(("value", "bound", "comparable"), unpadded, strict=True)))


def _in_blocks(x: Tensor, block: int) -> Tensor:
    return pad(x.flatten(), (0, -x.numel() % block)).view(-1, block)
