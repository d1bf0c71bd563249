"""Sizes of a parameter's matrices: its last two axes; a missing axis has size 1."""

from torch import Tensor


def rows(param: Tensor) -> int:
    """Return the number of rows of each matrix."""
    return param.size(-2) if param.dim() > 1 else 1


def cols(param: Tensor) -> int:
    """Return the number of columns of each matrix."""
    return param.size(-1) if param.dim() else 1
