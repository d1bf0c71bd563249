"""States of 8 bits by hand: tables of what codes stand for, and the nearest entry of a table."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def _tapered(k: float) -> float:
    """Return the share of the scale for k / 128 on a scale of fourth roots."""
    octave = math.floor(math.log2(k))
    quarters = 4 * (k / 2**octave - 1)  # from 0 to 4 within an octave of roots
    whole = math.floor(quarters)
    return 2.0 ** (4 * (octave - 7) + whole) * (1 + quarters - whole)


SHARES = {
    "linear": [c / 127 for c in range(128)],
    "dynamic": [0.0, *(_tapered(c + 1) for c in range(1, 128))],
}
LIMITS = {  # between the shares of two codes
    "linear": [(c + 0.5) / 127 for c in range(127)],
    "dynamic": [_tapered(c + 1.5) for c in range(127)],
}


def held(values: Tensor, block: int = 256, code_map: str = "dynamic") -> Tensor:
    """Return values, finite and of usual size, as a state of 8 bits holds them; row by row."""
    flat, result = values.detach().float().double().flatten(), []
    shares, limits = (torch.tensor(t[code_map], dtype=torch.float64) for t in (SHARES, LIMITS))
    for part in flat.split(block):
        scale = part.abs().max()
        codes = torch.bucketize(part.abs() / scale, limits) if scale else torch.zeros(len(part))
        if not part.signbit().any():
            codes = torch.where(part > 0, codes.clamp(min=1), codes)
        result.append(part.sign() * shares[codes.long()] * scale)
    return torch.cat(result).view(values.shape).to(values.dtype)
