"""Compute random numbers from counters, for the evaluator: Threefry-2x32 with 13 rounds.

Threefry is a keyed bijection of 64 bits: Salmon, Moraes, Dror and Shaw, "Parallel random numbers:
as easy as 1, 2, 3" (SC 2011), section 4.2. The authors know no statistical flaw of 13 rounds or
more (threefry.h of their library Random123). A number depends only on its seed, stream, step count,
call and position. So the numbers are the same in any order of computation, and nothing is stored
between steps.

Numbers of 16 bits come from a cheaper bijection of 32 bits, whose key is a block of Threefry.
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from optgen.contract.constants import (
    KEY_INCREMENT,
    THREEFRY_PARITY,
    THREEFRY_ROTATIONS,
    THREEFRY_ROUNDS,
    TRIPLE32_MULTIPLIERS,
    TRIPLE32_SHIFTS,
)

_WORD_MASK = 2**32 - 1


def threefry(key: tuple[int, int], low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two words of the block of each counter, as int64.

    `low` and `high` are the two words of the counter. A word has 32 bits.
    """
    words = (*key, THREEFRY_PARITY ^ key[0] ^ key[1])
    x, y = (low + words[0]) & _WORD_MASK, (high + words[1]) & _WORD_MASK
    for index in range(THREEFRY_ROUNDS):
        if index and index % 4 == 0:
            injection = index // 4
            x = (x + words[injection % 3]) & _WORD_MASK
            y = (y + words[(injection + 1) % 3] + injection) & _WORD_MASK
        rotation = THREEFRY_ROTATIONS[index % 8]
        x = (x + y) & _WORD_MASK
        y = ((y << rotation) | (y >> (32 - rotation))) & _WORD_MASK ^ x
    return x, y


def random(elements: Tensor, seed: Tensor, stream: Tensor, step: Tensor, call: Tensor) -> Tensor:
    """Return numbers in [0, 1), multiples of 2**-24, for elements at these positions (int64).

    Two elements share a block: an even position takes its first word, the next position the second.
    """
    first, second = _block(elements >> 1, seed, stream, step, call)
    return (torch.where(elements & 1 == 0, first, second) >> 8).double() / 2**24


def random16(elements: Tensor, seed: Tensor, stream: Tensor, step: Tensor, call: Tensor) -> Tensor:
    """Return numbers in [0, 1), multiples of 2**-16, for elements at these positions (int64).

    An even position takes the lower half of a word, the next position the upper half. The first
    block of the stream is the key of all words.
    """
    first_block = torch.zeros((), dtype=torch.int64, device=elements.device)
    word = permuted(elements >> 1, _block(first_block, seed, stream, step, call))
    return torch.where(elements & 1 == 0, word & 0xFFFF, word >> 16).double() / 2**16


def permuted(counters: Tensor, key: tuple[Tensor, Tensor]) -> Tensor:
    """Return a word of 32 bits for each counter, as int64.

    This is the permutation triple32 of Chris Wellons's hash-prospector, with a key. The first word
    of the key is added to the counter, and combined by xor after the first product. The second word
    is combined before the first product. The upper half of a counter that has more than 32 bits
    changes the first word.
    """
    first_key_word = (key[0] + (counters >> 32) * KEY_INCREMENT) & _WORD_MASK
    x = (counters + first_key_word) & _WORD_MASK
    x = (x ^ x >> TRIPLE32_SHIFTS[0] ^ key[1]) * TRIPLE32_MULTIPLIERS[0] & _WORD_MASK
    x = (x ^ x >> TRIPLE32_SHIFTS[1] ^ first_key_word) * TRIPLE32_MULTIPLIERS[1] & _WORD_MASK
    x = (x ^ x >> TRIPLE32_SHIFTS[2]) * TRIPLE32_MULTIPLIERS[2] & _WORD_MASK
    return x ^ x >> TRIPLE32_SHIFTS[3]


def gaussian(x: Tensor, seed: Tensor, stream: Tensor, step: Tensor, call: Tensor) -> Tensor:
    """Return numbers of the standard normal distribution in the shape of x, by Box and Muller.

    The first word of an element's block gives the radius, the second word the angle.
    """
    first, second = _block(positions(x), seed, stream, step, call)
    radius = (-2 * (((first >> 8) + 1).double() / 2**24).log()).sqrt()
    return radius * ((second >> 8).double() * (2 * pi / 2**24)).cos()


def _block(
    block_numbers: Tensor, seed: Tensor, stream: Tensor, step: Tensor, call: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the two words of each block, given the numbers of the blocks.

    The key consists of the seed, the call and the step, the counter of the block and the stream.
    """
    key = _as_int(seed) | _as_int(call) << 24, _as_int(step) & _WORD_MASK
    high = block_numbers >> 32 | _as_int(stream) << 8
    return threefry(key, block_numbers & _WORD_MASK, high)


def _as_int(number: Tensor) -> int:
    """Return a whole number as an int; 0 for NaN, which an infinite seed becomes."""
    return int(number.nan_to_num(0.0))


def positions(param: Tensor) -> Tensor:
    """Return the position of every element of a parameter or matrix, in row-major order."""
    return torch.arange(param.numel(), device=param.device).view(param.shape)
