"""Device function that draws random numbers from counters: Threefry-2x32 with 13 rounds.

The generator is that of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), as
in optgen.ir.random_numbers. Numbers of 16 bits come from a permutation of 32 bits, whose key the
generator draws.
"""

import triton
import triton.language as tl

from optgen.contract import constants

ROUNDS = tl.constexpr(constants.THREEFRY_ROUNDS)
ROTATIONS = tl.constexpr(constants.THREEFRY_ROTATIONS)
PARITY = tl.constexpr(constants.THREEFRY_PARITY)
MULTIPLIERS = tl.constexpr(constants.TRIPLE32_MULTIPLIERS)
SHIFTS = tl.constexpr(constants.TRIPLE32_SHIFTS)
KEY_INCREMENT = tl.constexpr(constants.KEY_INCREMENT)


@triton.jit
def random_numbers(positions, seed, stream, step, CALL: tl.constexpr):
    """Return the CALL-th draw: numbers in [0, 1), multiples of 2**-24, in the dtype of `seed`."""
    x, y = block(positions >> 1, seed, stream, step, CALL)
    bits = tl.where(positions & 1 == 0, x, y) >> 8  # two positions share the two words of a block
    return bits.to(tl.int32).to(seed.dtype) * 5.9604644775390625e-08


@triton.jit
def random_numbers16(positions, seed, stream, step, CALL: tl.constexpr):
    """Return the CALL-th draw: numbers in [0, 1), multiples of 2**-16, in the dtype of `seed`."""
    first_block = tl.full((), 0, tl.int64)
    first, second = block(first_block, seed, stream, step, CALL)
    pairs = positions >> 1  # two positions share a word
    first += (pairs >> 32).to(tl.uint32) * KEY_INCREMENT
    bits = permuted(pairs.to(tl.uint32), first, second)
    bits = tl.where(positions & 1 == 0, bits & 0xFFFF, bits >> 16)
    return bits.to(tl.int32).to(seed.dtype) * 1.52587890625e-05


@triton.jit
def permuted(x, first, second):
    """Permute words; `first` and `second` are the words of the key."""
    x += first
    x = (x ^ (x >> SHIFTS[0]) ^ second) * MULTIPLIERS[0]
    x = (x ^ (x >> SHIFTS[1]) ^ first) * MULTIPLIERS[1]
    x = (x ^ (x >> SHIFTS[2])) * MULTIPLIERS[2]
    return x ^ (x >> SHIFTS[3])


@triton.jit
def block(blocks, seed, stream, step, CALL: tl.constexpr):
    """Return the two words of each block; `blocks` are the indices of the blocks."""
    k0 = word(seed) | (tl.full((), CALL, tl.uint32) << 24)
    k1 = word(step)
    words = k0, k1, k0 ^ k1 ^ PARITY
    x = blocks.to(tl.uint32) + k0
    y = ((blocks >> 32).to(tl.uint32) | (word(stream) << 8)) + k1
    for index in tl.static_range(ROUNDS):
        x += y
        y = ((y << ROTATIONS[index % 8]) | (y >> (32 - ROTATIONS[index % 8]))) ^ x
        if index % 4 == 3:
            x += words[(index // 4 + 1) % 3]
            y += words[(index // 4 + 2) % 3] + (index // 4 + 1)
    return x, y


@triton.jit
def word(number):
    """Return a whole number below 2**31 as a word; 0 for NaN, the key of an infinite seed."""
    return tl.where(number == number, number, 0.0).to(tl.int32).to(tl.uint32)
