"""Draw random numbers from counters; every lowering and every sharding gets equal numbers.

The generator is Threefry-2x32 with 13 rounds (Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", SC 2011), as in optgen.ir.random_numbers. Numbers of 16 bits come from a permutation of
words of 32 bits. Here the generator and the permutation compute with int32, whose sums and products
wrap around. They read no tensor's value on the host, so a graph can capture them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import pi
from typing import TYPE_CHECKING, TypeAlias, TypeVar

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
from optgen.runtime.eager.parts import CPU_ELEMENTS
from optgen.runtime.eager.tensor_lists import TensorList

if TYPE_CHECKING:
    from optgen.runtime.sharded.driver import Collectives

Number: TypeAlias = float | Tensor
Value = TypeVar("Value", Tensor, TensorList)
_MULTIPLIERS = [multiplier - (multiplier >> 31 << 32) for multiplier in TRIPLE32_MULTIPLIERS]
_KEY_INCREMENT = KEY_INCREMENT - 2**32  # all as numbers of int32


def random(
    params: list[Tensor],
    seed: Number,
    stream: Number,
    step: Number,
    call: int,
    collectives: Collectives | None = None,
) -> list[Tensor]:
    """Return one tensor of numbers in [0, 1) for each parameter of a bucket.

    Args:
        params: Parameters of one shape; shards of parameters of one shape with `collectives`.
        seed: A whole number from 0 to 2**24 - 1.
        stream: Such a number for all parameters, which then get equal numbers; or a vector of
            float64 with one for each.
        step: The step count.
        call: The index of this call among the calls in the rule.
        collectives: How the parameters are sharded.
    """
    key, streams = _key(params[0], seed, step, call), _streams(stream, params[0])

    def numbers(rows: slice, positions: Tensor) -> Tensor:
        even, odd = _words(key, streams[rows], positions >> 1)
        return torch.where(positions & 1 == 0, even, odd) >> 8 & 0xFFFFFF

    positions = _positions(params[0], collectives)
    return _drawn(params, len(streams), positions, numbers, unit=2.0**-24)


def random16(
    params: list[Tensor],
    seed: Number,
    stream: Number,
    step: Number,
    call: int,
    collectives: Collectives | None = None,
) -> list[Tensor]:
    """Return numbers as `random` does, but of 16 bits instead of 24. Two elements share a word."""
    first, streams = params[0], _streams(stream, params[0])
    origin = torch.zeros((), dtype=torch.int64, device=first.device)
    keys = _words(_key(first, seed, step, call), streams, origin)

    def numbers(rows: slice, positions: Tensor) -> Tensor:
        word = _permute(positions >> 1, (keys[0][rows], keys[1][rows]))
        return torch.where(positions & 1 == 0, word, word >> 16) & 0xFFFF

    positions = _positions(first, collectives)
    return _drawn(params, len(streams), positions, numbers, unit=2.0**-16)


def gaussian(x: Value, seed: Number, stream: Number, step: Number, call: int) -> Value:
    """Return numbers of the standard normal distribution in the shape of x, by Box and Muller.

    Args:
        x: A matrix, or a list of matrices of one shape.
        seed, stream, step, call: As for `random`.
    """
    matrices = x.tensors if isinstance(x, TensorList) else [x]
    dtype, streams = _dtype(matrices[0]), _streams(stream, matrices[0])
    key = _key(matrices[0], seed, step, call)

    def numbers(rows: slice, positions: Tensor) -> Tensor:
        words = (word >> 8 & 0xFFFFFF for word in _words(key, streams[rows], positions))
        distances, angles = (word.to(dtype) for word in words)
        distances.add_(1).mul_(2.0**-24).log_().mul_(-2).sqrt_()
        return angles.mul_(2 * pi / 2**24).cos_().mul_(distances)

    drawn = _drawn(matrices, len(streams), _positions(matrices[0], None), numbers)
    return TensorList(drawn) if isinstance(x, TensorList) else drawn[0]


def _drawn(
    params: list[Tensor],
    count: int,
    positions: Tensor,
    numbers: Callable[[slice, Tensor], Tensor],
    unit: float = 1.0,
) -> list[Tensor]:
    """Return the numbers that belong to the positions of the parameters' elements, as floats.

    On the CPU few numbers are drawn at once: about a hundred operations on them stay in the cache.

    Args:
        params: Parameters of one shape.
        count: The number of streams: one for each parameter, or one for all.
        positions: The positions of a parameter's elements, in its shape.
        numbers: Returns the numbers of some streams, by rows, at some positions.
        unit: The factor of all numbers.
    """
    dtype, device = _dtype(params[0]), params[0].device
    flat, drawn = (
        positions.view(-1),
        torch.empty(count, *positions.shape, dtype=dtype, device=device),
    )
    length = CPU_ELEMENTS if drawn.is_cpu else max(1, drawn.numel())
    height = max(1, length // max(1, len(flat)))
    table = drawn.view(count, len(flat))
    for top, left in product(range(0, count, height), range(0, len(flat), length)):
        rows, columns = slice(top, top + height), slice(left, left + length)
        table[rows, columns].copy_(numbers(rows, flat[columns]))
    if unit != 1:
        drawn.mul_(unit)
    return list(drawn.unbind()) if count == len(params) else [drawn[0]] * len(params)


def _dtype(like: Tensor) -> torch.dtype:
    return torch.promote_types(like.dtype, torch.float32)


def _key(like: Tensor, seed: Number, step: Number, call: int) -> tuple[Tensor, Tensor]:
    """Return the two words of the key, on the device of a tensor."""
    return _word(_whole_number(seed) | call << 24, like), _word(_whole_number(step), like)


def _words(key: tuple[Tensor, Tensor], streams: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two words of each block of each stream; `blocks` are the indices of blocks."""
    high = (blocks >> 32) | (streams << 8)
    return _threefry(key, blocks.to(torch.int32).expand_as(high), high.to(torch.int32))


def _streams(stream: Number, like: Tensor) -> Tensor:
    """Return a stream, or one for each parameter, as a column of int64 on the device of a tensor.

    A vector is copied from memory that is not pinned, so neither host nor device waits.
    """
    whole = _whole_number(stream)
    if isinstance(whole, Tensor):
        return whole.to(like.device, non_blocking=True).view(-1, 1)
    return torch.full((1, 1), whole, dtype=torch.int64, device=like.device)


def _positions(param: Tensor, collectives: Collectives | None) -> Tensor:
    """Return the row-major position of every element in the whole parameter."""
    if collectives is None:
        return torch.arange(param.numel(), device=param.device).view(param.shape)
    whole = collectives.whole.shape
    starts, sizes = [0] * len(whole), list(whole)
    for axis in collectives.sharded_axes:
        shards = axis.sizes(sizes[axis.dim])
        starts[axis.dim] += sum(shards[: axis.rank])
        sizes[axis.dim] = shards[axis.rank]
    positions = torch.zeros(param.shape, dtype=torch.int64, device=param.device)
    distance = 1
    for dim in reversed(range(len(whole))):
        along = torch.arange(starts[dim], starts[dim] + param.shape[dim], device=param.device)
        shape = [1] * len(whole)
        shape[dim] = param.shape[dim]
        positions += along.view(shape) * distance
        distance *= whole[dim]
    return positions


def _whole_number(number: Number) -> int | Tensor:
    """Return a number as an integer; 0 for NaN."""
    if isinstance(number, Tensor):
        return number.nan_to_num(0.0).to(torch.int64)
    return int(number) if number == number else 0  # an infinite seed gives NaN


def _word(number: int | Tensor, like: Tensor) -> Tensor:
    """Return a number as a word of 32 bits, which int32 holds modulo 2**32.

    A number of the host is filled in: to copy it, the host would wait for the device.
    """
    if isinstance(number, Tensor):
        return number.to(like.device).to(torch.int32)
    signed = (number + 2**31) % 2**32 - 2**31
    return torch.full((), signed, dtype=torch.int32, device=like.device)


def _threefry(key: tuple[Tensor, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two words of the block of each counter; `x` and `y` are the counter's words."""
    words = (*key, key[0] ^ key[1] ^ THREEFRY_PARITY)
    x, y = x + words[0], y + words[1]
    for rounds in range(THREEFRY_ROUNDS):
        if rounds and rounds % 4 == 0:
            group = rounds // 4
            x += words[group % 3]
            y += words[(group + 1) % 3] + group
        distance = THREEFRY_ROTATIONS[rounds % 8]
        x += y
        y = (y << distance).bitwise_or_(_shift_right(y, 32 - distance)).bitwise_xor_(x)
    return x, y


def _permute(counters: Tensor, key: tuple[Tensor, Tensor]) -> Tensor:
    """Permute 64-bit counters under a key, to a word of 32 bits each."""
    first = (counters >> 32).to(torch.int32).mul_(_KEY_INCREMENT) + key[0]
    x = counters.to(torch.int32) + first
    x = (
        x.bitwise_xor_(_shift_right(x, TRIPLE32_SHIFTS[0]))
        .bitwise_xor_(key[1])
        .mul_(_MULTIPLIERS[0])
    )
    x = (
        x.bitwise_xor_(_shift_right(x, TRIPLE32_SHIFTS[1]))
        .bitwise_xor_(first)
        .mul_(_MULTIPLIERS[1])
    )
    x = x.bitwise_xor_(_shift_right(x, TRIPLE32_SHIFTS[2])).mul_(_MULTIPLIERS[2])
    return x.bitwise_xor_(_shift_right(x, TRIPLE32_SHIFTS[3]))


def _shift_right(x: Tensor, distance: int) -> Tensor:
    """Shift words to the right and fill with zeros; `>>` of int32 would copy the sign bit."""
    return (x >> distance).bitwise_and_((1 << (32 - distance)) - 1)
