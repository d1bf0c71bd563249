"""Device functions that read and write streams of codes, in the format of tensors/quantized.py.

A stream holds codes (int8) or, in small parameters, float32 numbers: its dtype is a constexpr. The
lanes of a tile are whole blocks, so one program computes the scale of each block that it writes.
"""

import triton
import triton.language as tl

from optgen.contract import constants
from optgen.runtime.fused_triton.device_functions import div

FOURTH_ROOT = tl.constexpr(0x3F800000 - (0x3F800000 >> 2))
"""This plus a quarter of the bits of x is nearly the bits of the fourth root of x."""
ROOT_TIMES_128 = tl.constexpr(FOURTH_ROOT.value + (7 << 23))
ROOT_TIMES_8 = tl.constexpr(FOURTH_ROOT.value + (3 << 23))
"""FOURTH_ROOT for the root times the number of shares that a code has."""
MAGNITUDE = tl.constexpr(0x7FFFFFFF)
SMALLEST_SCALE = tl.constexpr(constants.SMALLEST_SCALE)
TOO_LARGE_SCALE = tl.constexpr(constants.TOO_LARGE_SCALE)
ROUNDER = tl.constexpr(1.5 * 2.0**23)
"""Adding this number to a small one rounds it to an integer, ties to even."""
ROUNDER_BITS = tl.constexpr(0x4B400000)
LINEAR_STEP = tl.constexpr(0.007874015718698502)
"""The float32 nearest to 1 / 127: the distance of neighbouring codes, as a share of their scale."""
STEP_4_BITS = tl.constexpr(0.06666667014360428)
"""The float32 nearest to 1 / 15: the same for codes of 4 bits without a sign."""

E4M3_STEP = tl.constexpr(2.0**-9)
"""The smallest number above 0 of float8_e4m3fn: numbers below 2**-6 are its multiples."""
E4M3_SMALLEST_NORMAL = tl.constexpr(0x3C800000)
"""The bits of 2**-6 as a float32."""
E4M3_BIAS = tl.constexpr(120 << 23)
"""The difference between the exponents of a number in float32 and in float8_e4m3fn, in place."""
E4M3_ROUNDER = tl.constexpr(1.5 * 2.0**14)
"""Adding this number to one below 2**-6 rounds it to a multiple of 2**-9, ties to even."""
E4M3_ROUNDER_BITS = tl.constexpr(0x46C00000)


@triton.jit
def scales_at(address, numel, start, BLOCK: tl.constexpr, MAP: tl.constexpr):
    """Return a pointer to the scale of the block that begins at element `start` of a stream."""
    code_bytes = (numel + 1) // 2 if MAP == "dynamic4" else numel
    code_bytes = (code_bytes + 63) // 64 * 64  # the scales begin at a multiple of 64 bytes
    return (address + code_bytes + start // BLOCK * 4).to(tl.pointer_type(tl.float32))


@triton.jit
def packed_index(start, T: tl.constexpr):
    """Return the index of the byte that holds the code of element `start`, which is even.

    If a stream holds numbers, of another type than int8, the index is `start`.
    """
    return start // 2 if T == tl.int8 else start


@triton.jit
def load_coded(stream, scales, lanes, mask, BLOCK: tl.constexpr, MAP: tl.constexpr):
    """Return the numbers of a stream's elements at these lanes."""
    if stream.dtype.element_ty != tl.int8:
        numbers = tl.load(stream + lanes, mask)
    elif MAP == "dynamic4":
        scale = tl.load(scales + lanes // BLOCK, mask)
        pair = tl.load(stream + lanes // 2, mask).to(tl.int32)
        code = tl.where(lanes % 2 == 0, pair >> 4, pair) & 15
        numbers = decoded_4_bits(code, scale < 0) * tl.abs(scale)
    else:
        scale = tl.load(scales + lanes // BLOCK, mask)
        numbers = decoded(tl.load(stream + lanes, mask).to(tl.int32), MAP) * scale
    return numbers


@triton.jit
def decoded_4_bits(code, is_unsigned):
    """Return the shares that codes of 4 bits stand for: a sign and 3 bits unless `is_unsigned`."""
    magnitude = code & 7
    root = (magnitude + 1).to(tl.float32).to(tl.int32, bitcast=True)
    power = tl.where(magnitude == 0, 0, (root - ROOT_TIMES_8) << 2)
    with_sign = (power | (code & 8) << 28).to(tl.float32, bitcast=True)
    return tl.where(is_unsigned, code.to(tl.float32) * STEP_4_BITS, with_sign)


@triton.jit
def decoded(code, MAP: tl.constexpr):
    """Return the numbers that codes stand for, as shares of their scales."""
    if MAP == "e4m3":
        magnitude = code & 0x7F
        subnormal = magnitude.to(tl.float32) * E4M3_STEP
        normal = ((magnitude << 20) + E4M3_BIAS).to(tl.float32, bitcast=True)
        share = tl.where(magnitude < 8, subnormal, normal)
    elif MAP == "linear":
        share = tl.abs(code).to(tl.float32) * LINEAR_STEP
    else:
        magnitude = tl.abs(code)
        bits = (magnitude + 1).to(tl.float32).to(tl.int32, bitcast=True) - ROOT_TIMES_128
        share = tl.where(magnitude == 0, 0, bits << 2).to(tl.float32, bitcast=True)
    return tl.where(code < 0, -share, share)


@triton.jit
def store_coded(stream, scales, numbers, lanes, mask, BLOCK: tl.constexpr, MAP: tl.constexpr):
    """Store numbers in the elements at these lanes; for codes, store the blocks' scales too."""
    if stream.dtype.element_ty != tl.int8:
        tl.store(stream + lanes, numbers.to(stream.dtype.element_ty), mask)
    else:
        numbers = numbers.to(tl.float32)
        if mask is not None:
            numbers = tl.where(mask, numbers, 0.0)
        blocks: tl.constexpr = numbers.shape[0] // BLOCK
        numbers = tl.reshape(numbers, (blocks, BLOCK))
        bits = numbers.to(tl.int32, bitcast=True)
        largest = tl.max(bits & MAGNITUDE, axis=1).to(tl.float32, bitcast=True)
        has_negatives = tl.min(bits, axis=1) < 0
        in_range = (largest >= SMALLEST_SCALE) & (largest < TOO_LARGE_SCALE)
        scale = div(largest, tl.zeros_like(largest) + 448.0) if MAP == "e4m3" else largest
        steps = tl.zeros_like(scale) + 1.0
        if MAP == "dynamic4":  # without negative numbers, codes are multiples of a fifteenth
            steps = tl.where(has_negatives, 1.0, 15.0)
        inverse = div(steps, tl.where(in_range, scale, 1.0))
        code = encoded(numbers, inverse[:, None], has_negatives[:, None], MAP)
        code = tl.where(in_range[:, None], code, 0)
        replacement = tl.where(largest < SMALLEST_SCALE, 0.0, float("nan"))
        if MAP == "dynamic4":
            scale = tl.where(has_negatives, scale, -scale)
            store_pairs(stream, code, lanes, mask)
        else:
            tl.store(stream + lanes, tl.reshape(code.to(tl.int8), lanes.shape), mask)
        first_lanes = tl.min(tl.reshape(lanes, (blocks, BLOCK)), axis=1)
        scale_addresses = scales + first_lanes // BLOCK
        if mask is None:
            tl.store(scale_addresses, tl.where(in_range, scale, replacement))
        else:
            has_elements = tl.max(tl.reshape(mask.to(tl.int32), (blocks, BLOCK)), axis=1) > 0
            tl.store(scale_addresses, tl.where(in_range, scale, replacement), has_elements)


@triton.jit
def store_pairs(stream, code, lanes, mask):
    """Store codes of 4 bits in pairs. One program, and one thread, writes each byte."""
    pairs: tl.constexpr = lanes.shape[0] // 2
    first, second = tl.split(tl.reshape(code, (pairs, 2)))
    first_lanes = tl.min(tl.reshape(lanes, (pairs, 2)), axis=1)
    if mask is not None:
        mask = tl.max(tl.reshape(mask.to(tl.int32), (pairs, 2)), axis=1) > 0
    tl.store(stream + first_lanes // 2, (first << 4 | second).to(tl.int8), mask)


@triton.jit
def encoded(numbers, inverse, has_negatives, MAP: tl.constexpr):
    """Return the codes of numbers, given the inverse of their block's scale, or 15 times that."""
    share = (numbers * inverse).to(tl.int32, bitcast=True) & MAGNITUDE
    if MAP == "e4m3":
        near = share.to(tl.float32, bitcast=True) + E4M3_ROUNDER
        subnormal = near.to(tl.int32, bitcast=True) - E4M3_ROUNDER_BITS
        normal = (share - E4M3_BIAS + 0x7FFFF + ((share >> 20) & 1)) >> 20
        magnitude = tl.where(share < E4M3_SMALLEST_NORMAL, subnormal, normal)
    elif MAP == "linear":
        near = share.to(tl.float32, bitcast=True) * 127.0 + ROUNDER
        magnitude = near.to(tl.int32, bitcast=True) - ROUNDER_BITS
    elif MAP == "dynamic4":
        root = tl.where(has_negatives, (share >> 2) + ROOT_TIMES_8, share)
        near = root.to(tl.float32, bitcast=True) + ROUNDER
        magnitude = near.to(tl.int32, bitcast=True) - ROUNDER_BITS
        magnitude = tl.maximum(magnitude - has_negatives.to(tl.int32), 0)
    else:
        near = ((share >> 2) + ROOT_TIMES_128).to(tl.float32, bitcast=True) + ROUNDER
        magnitude = near.to(tl.int32, bitcast=True) - (ROUNDER_BITS + 1)
        magnitude = tl.maximum(magnitude, 0)
    # In a block without negative numbers, numbers that are not 0 get at least code 1.
    min_magnitude = tl.where(has_negatives | (numbers == 0.0), 0, 1)
    magnitude = tl.maximum(magnitude, min_magnitude)
    if MAP == "e4m3":  # the sign is the top bit of a byte
        return tl.where(numbers.to(tl.int32, bitcast=True) < 0, magnitude - 128, magnitude)
    if MAP == "dynamic4":  # or of half a byte
        return tl.where(numbers.to(tl.int32, bitcast=True) < 0, magnitude + 8, magnitude)
    return tl.where(numbers < 0, -magnitude, magnitude)
