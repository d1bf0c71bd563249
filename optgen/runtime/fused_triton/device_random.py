"""Device function that draws random numbers from counters: Threefry-2x32 with 13 rounds.

The generator is that of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), as
in optgen.ir.random_numbers. Numbers of 16 bits come from a permutation of 32 bits, whose key the
generator draws.
"""

import triton
import triton.language as tl


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
    first += (pairs >> 32).to(tl.uint32) * 0x9E3779B9
    bits = permuted(pairs.to(tl.uint32), first, second)
    bits = tl.where(positions & 1 == 0, bits & 0xFFFF, bits >> 16)
    return bits.to(tl.int32).to(seed.dtype) * 1.52587890625e-05


@triton.jit
def permuted(x, first, second):
    """Permute words; `first` and `second` are the words of the key."""
    x += first
    x = (x ^ (x >> 17) ^ second) * 0xED5AD4BB
    x = (x ^ (x >> 11) ^ first) * 0xAC4C1B51
    x = (x ^ (x >> 15)) * 0x31848BAB
    return x ^ (x >> 14)


@triton.jit
def block(blocks, seed, stream, step, CALL: tl.constexpr):
    """Return the two words of each block; `blocks` are the indices of the blocks."""
    k0 = word(seed) | (tl.full((), CALL, tl.uint32) << 24)
    k1 = word(step)
    k2 = k0 ^ k1 ^ 0x1BD11BDA
    x = blocks.to(tl.uint32) + k0
    y = ((blocks >> 32).to(tl.uint32) | (word(stream) << 8)) + k1
    x, y = four_rounds(x, y, 13, 15, 26, 6)
    x, y = four_rounds(x + k1, y + k2 + 1, 17, 29, 16, 24)
    x, y = four_rounds(x + k2, y + k0 + 2, 13, 15, 26, 6)
    return one_round(x + k0, y + k1 + 3, 17)


@triton.jit
def word(number):
    """Return a whole number below 2**31 as a word; 0 for NaN, the key of an infinite seed."""
    return tl.where(number == number, number, 0.0).to(tl.int32).to(tl.uint32)


@triton.jit
def four_rounds(x, y, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    """Run four rounds of Threefry with these rotation distances."""
    x, y = one_round(x, y, A)
    x, y = one_round(x, y, B)
    x, y = one_round(x, y, C)
    return one_round(x, y, D)


@triton.jit
def one_round(x, y, DISTANCE: tl.constexpr):
    """Run one round of Threefry: add, rotate and combine."""
    x += y
    return x, ((y << DISTANCE) | (y >> (32 - DISTANCE))) ^ x
