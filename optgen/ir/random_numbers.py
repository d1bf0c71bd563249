"""Compute random numbers from counters, as the evaluator does: Threefry-2x32 with 13 rounds.

Threefry is a keyed bijection of 64 bits: Salmon, Moraes, Dror and Shaw, "Parallel random numbers:
as easy as 1, 2, 3" (SC 2011), section 4.2. The authors know no statistical flaw of 13 rounds or
more (threefry.h of their library Random123). A number depends only on its seed, stream, step count,
call and position. So the numbers are the same in any order of computation, and nothing is stored
between steps.
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

SEEDS = 2**24
"""Seeds and streams are whole numbers below 2**24, which a float32 holds exactly."""

_WORD = 2**32 - 1
_ROUNDS = 13
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA


def threefry(key: tuple[int, int], low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two words of the block of each counter, as int64.

    `low` and `high` are the two words of the counter. A word has 32 bits.
    """
    words = (*key, _PARITY ^ key[0] ^ key[1])
    x, y = (low + words[0]) & _WORD, (high + words[1]) & _WORD
    for index in range(_ROUNDS):
        if index and index % 4 == 0:
            group = index // 4
            x = (x + words[group % 3]) & _WORD
            y = (y + words[(group + 1) % 3] + group) & _WORD
        rotation = _ROTATIONS[index % 8]
        x = (x + y) & _WORD
        y = ((y << rotation) | (y >> (32 - rotation))) & _WORD ^ x
    return x, y


def random(elements: Tensor, seed: Tensor, stream: Tensor, step: Tensor, call: Tensor) -> Tensor:
    """Return numbers in [0, 1), multiples of 2**-24, for elements at these positions (int64).

    Two elements share a block. An even position takes the first word of it, the next position the
    second.
    """
    first, second = _block(elements >> 1, seed, stream, step, call)
    return (torch.where(elements & 1 == 0, first, second) >> 8).double() / 2**24


def random16(elements: Tensor, seed: Tensor, stream: Tensor, step: Tensor, call: Tensor) -> Tensor:
    """Return numbers in [0, 1), multiples of 2**-16, for elements at these positions (int64).

    Four elements share a block. 256 positions share 64 blocks: the first 128 positions take the
    first words, the others the second words. An even position takes the lower half of its word, and
    the next position the upper half.
    """
    words = _block(elements >> 8 << 6 | elements >> 1 & 63, seed, stream, step, call)
    word = torch.where(elements & 128 == 0, *words)
    return torch.where(elements & 1 == 0, word & 0xFFFF, word >> 16).double() / 2**16


def gaussian(x: Tensor, seed: Tensor, stream: Tensor, step: Tensor, call: Tensor) -> Tensor:
    """Return numbers of the standard normal distribution in the shape of x, by Box and Muller.

    The first word of an element's block gives the radius, the second word the angle.
    """
    first, second = _block(positions(x), seed, stream, step, call)
    radius = (-2 * (((first >> 8) + 1).double() / 2**24).log()).sqrt()
    return radius * ((second >> 8).double() * (2 * pi / 2**24)).cos()


def _block(
    blocks: Tensor, seed: Tensor, stream: Tensor, step: Tensor, call: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the two words of each numbered block.

    The key has the seed, the call and the step. The counter has the block and the stream.
    """
    key = _as_int(seed) | _as_int(call) << 24, _as_int(step) & _WORD
    high = blocks >> 32 | _as_int(stream) << 8
    return threefry(key, blocks & _WORD, high)


def _as_int(number: Tensor) -> int:
    """Return a whole number as an int; 0 for NaN, which an infinite seed becomes."""
    return int(number.nan_to_num(0.0))


def positions(param: Tensor) -> Tensor:
    """Return the position of every element of a parameter or matrix, in row-major order."""
    return torch.arange(param.numel(), device=param.device).view(param.shape)
