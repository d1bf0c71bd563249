"""Sizes of a parameter's matrices, its last two axes; an axis it lacks has size 1."""

from torch import Tensor


def rows(param: Tensor) -> int:
    """How many rows each matrix has."""
    return param.size(-2) if param.dim() > 1 else 1


def cols(param: Tensor) -> int:
    """How many columns each matrix has."""
    return param.size(-1) if param.dim() else 1
