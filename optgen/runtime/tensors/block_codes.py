"""Encode float32 numbers in 8 bits each, by blocks: a code for each number, a scale for each block.

A scale is the largest magnitude of a block. A code is the sign and a number c from 0 to 127, which
stands for a share of the scale. For the map "linear", the share is c / 127. For "dynamic", shares
lie closer together the smaller they are: (c + 1) / 128 is about the fourth root of the share. The
root is computed from the bits of the share as a float32, which are roughly its logarithm: the bits
are divided by 4, and a constant is added. So no lowering needs a table, and all lowerings compute
equal codes. There is an exception: with a linear map, a GPU may fuse a product and a sum into one
rounding. If two codes are equally near, the GPU may then choose the other code.

A number gets the nearest code. In a block without negative numbers, numbers that are not 0 get at
least code 1, so that a rule can divide by them.

Blocks whose largest magnitude is below `SMALLEST_SCALE` become zeros. If the largest magnitude is
NaN, or `TOO_LARGE_SCALE` or more, the scale becomes NaN, and so do all numbers of the block.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from optgen.contract.numbers import SMALLEST_SCALE, TOO_LARGE_SCALE

_ONE = 0x3F800000  # the bits of 1.0
_ROOT_OFFSET = _ONE - (_ONE >> 2)  # the bits of a fourth root, less a quarter of the number's bits


def encode(numbers: Tensor, block_size: int, code_map: str) -> tuple[Tensor, Tensor]:
    """Return the int8 codes of a flat float32 tensor, and the float32 scales of its blocks."""
    count = numbers.numel()
    blocks = pad(numbers, (0, -count % block_size)).view(-1, block_size)
    magnitudes = blocks.abs()
    scales = magnitudes.amax(dim=1, keepdim=True) if count else blocks.new_zeros((0, 1))
    are_in_range = (scales >= SMALLEST_SCALE) & (scales < TOO_LARGE_SCALE)
    min_code_is_1 = ~blocks.signbit().any(dim=1, keepdim=True) & (blocks > 0)
    shares = magnitudes.mul_(torch.where(are_in_range, scales, 1.0).reciprocal_())
    if code_map == "linear":
        codes = shares.mul_(127).round_()
    else:
        roots = (shares.view(torch.int32) >> 2).add_(_ROOT_OFFSET).view(torch.float32)
        codes = roots.mul_(128).round_().sub_(1).clamp_(0, 127)
    codes = torch.maximum(codes, min_code_is_1.float()).copysign_(blocks)
    codes = torch.where(are_in_range, codes, 0.0).to(torch.int8)
    are_finite = scales < TOO_LARGE_SCALE
    stored_scales = torch.where(are_in_range, scales, torch.where(are_finite, 0.0, torch.nan))
    return codes.view(-1)[:count], stored_scales.view(-1)


def decode(codes: Tensor, scales: Tensor, block_size: int, code_map: str) -> Tensor:
    """Return the float32 numbers that codes and the scales of their blocks stand for."""
    count = codes.numel()
    numbers = pad(codes.to(torch.float32), (0, -count % block_size)).view(-1, block_size)
    if code_map == "linear":
        shares = numbers.mul_(1 / 127)
    else:
        roots = (numbers.abs() + 1).div_(128).view(torch.int32)
        shares = ((roots - _ROOT_OFFSET) << 2).view(torch.float32)
        shares = torch.where(numbers == 0, 0.0, shares).copysign_(numbers)
    return shares.mul_(scales[:, None]).view(-1)[:count]
