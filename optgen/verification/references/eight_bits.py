"""Steps of rules with states of 8 bits. An element is stored as a sign and the code of its share.

Other formats are here too, for tests. Codes of 4 bits have no sign in blocks without negative
numbers.

A share is an element's magnitude, divided by the scale of its block: the scale is the largest
magnitude there, divided by the largest share. The code is that of the nearest share in a table.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from optgen.verification.case import Case, State, by_parameter
from optgen.verification.references.moments import DECAY, LR, LR_AND_DECAY, moments


def _dynamic_share(k: float, octaves: int = 7) -> float:
    """Return the share of code k - 1 in a dynamic map of 2**octaves codes.

    It is about (k / 2**octaves)**4: the power is interpolated linearly between powers of 2.
    """
    octave = math.floor(math.log2(k))
    quarters = 4 * (k / 2**octave - 1)  # from 0 to 4 within an octave of roots
    whole_quarters = math.floor(quarters)
    return 2.0 ** (4 * (octave - octaves) + whole_quarters) * (1 + quarters - whole_quarters)


def _e4m3_share(code: float) -> float:
    """Return the number of float8_e4m3fn with these bits, or of a point between two of them."""
    exponent, mantissa = divmod(code, 8)
    return mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)


SHARES = {
    "linear": [c / 127 for c in range(128)],
    "dynamic": [0.0, *(_dynamic_share(c + 1) for c in range(1, 128))],
    "e4m3": [_e4m3_share(c) for c in range(127)],
    "dynamic4": [0.0, *(_dynamic_share(c + 1, 3) for c in range(1, 8))],
}
UNSIGNED_SHARES = {  # of blocks without negative numbers
    **SHARES,
    "dynamic4": [c / 15 for c in range(16)],
}
LIMITS = {  # the shares at which rounding changes from one code to the next
    "linear": [(c + 0.5) / 127 for c in range(127)],
    "dynamic": [_dynamic_share(c + 1.5) for c in range(127)],
    "e4m3": [_e4m3_share(c + 0.5) for c in range(126)],
    "dynamic4": [_dynamic_share(c + 1.5, 3) for c in range(7)],
}
UNSIGNED_LIMITS = {**LIMITS, "dynamic4": [(c + 0.5) / 15 for c in range(15)]}


def nearest_codes(shares: Tensor, code_map: str, has_signs: bool = True) -> Tensor:
    """Return, for each share, the code of the nearest share in the table.

    Dynamic maps drop the last two bits of a share. Halfway between two codes they take the odd
    code; e4m3 takes the even one. Equal steps are not taken to have shares halfway.
    """
    table = LIMITS if has_signs else UNSIGNED_LIMITS
    limits = torch.tensor(table[code_map], dtype=torch.float64)
    if code_map == "linear" or (code_map == "dynamic4" and not has_signs):
        return torch.bucketize(shares.double(), limits)
    parity = int(code_map != "e4m3")
    if parity:
        shares = (shares.view(torch.int32) & ~3).view(torch.float32)
    shares = shares.double()
    # They differ only halfway between two codes.
    lower_code = torch.bucketize(shares, limits)
    upper_code = torch.bucketize(shares, limits, right=True)
    return torch.where(lower_code % 2 == parity, lower_code, upper_code)


def round_to_8_bits(values: Tensor, block: int = 256, code_map: str = "dynamic") -> Tensor:
    """Round values to codes and return the rounded values, with shares and scales in float32.

    The values must be finite, and far from float32's limits.
    """
    flat, result = values.detach().float().flatten(), []
    for block_values in flat.split(block):
        has_signs = bool(block_values.signbit().any())
        table = SHARES if has_signs else UNSIGNED_SHARES
        shares = torch.tensor(table[code_map], dtype=torch.float32)
        scale = block_values.abs().max() / shares[-1]
        block_shares = block_values.abs() * (1 / scale) if scale else torch.zeros_like(block_values)
        codes = nearest_codes(block_shares, code_map, has_signs)
        if not has_signs:  # then a positive value does not become 0
            codes = torch.where(block_values > 0, codes.clamp(min=1), codes)
        result.append(block_values.sign() * shares[codes] * scale)
    return torch.cat(result).view(values.shape).to(values.dtype)


def adamw_8bit(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdamW whose moments are in 8 bits between two steps."""
    m, v = moments(g, state, (0.9, 0.999))
    for key in ("exp_avg", "exp_avg_sq"):
        state[key] = store_and_read(state[key])
    return p - LR * (m / (v.sqrt() + 1e-8) + DECAY * p)


def lion_8bit(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Lion whose momentum is in 8 bits between two steps."""
    old = state.get("exp_avg", torch.zeros_like(p))
    state["exp_avg"] = store_and_read(0.99 * old + 0.01 * g)
    return p - LR * (torch.sign(0.9 * old + 0.1 * g) + DECAY * p)


def store_and_read(values: Tensor) -> Tensor:
    """Return a state after its storage: in 8 bits, or in float32 if it has under 4096 elements."""
    return round_to_8_bits(values) if values.numel() >= 4096 else values.float().to(values.dtype)


LARGE_SHAPES = ((64, 80), (4, 3), (16, 257))
CASES = (
    Case("adamw_8bit", by_parameter(adamw_8bit), LR_AND_DECAY, shapes=LARGE_SHAPES),
    Case("lion_8bit", by_parameter(lion_8bit), LR_AND_DECAY, shapes=LARGE_SHAPES),
)
