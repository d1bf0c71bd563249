"""Operations on tensor lists that torch's `_foreach_` functions lack."""

import torch
from torch import Tensor


def scale_(tensors: list[Tensor], factor: float) -> None:
    """Multiply tensors by a number in place.

    On the CPU `_foreach_mul_` rounds a number to the tensors' dtype before it multiplies: a decay
    of 0.999 becomes 1 in bfloat16. A 0-dim tensor keeps its precision.
    """
    if tensors[0].is_cpu and tensors[0].dtype.itemsize == 2:
        torch._foreach_mul_(tensors, torch.full((), factor, dtype=torch.float32, device="cpu"))
    else:
        torch._foreach_mul_(tensors, factor)
