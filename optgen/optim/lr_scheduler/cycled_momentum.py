"""Set the momentum that cycles inversely to the rate: `momentum`, or the first of `betas`."""

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer


def is_beta(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer's momentum is the first of its betas."""
    if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
        raise ValueError(
            "optimizer must support momentum or beta1 with `cycle_momentum` option enabled"
        )
    return "betas" in optimizer.defaults


def write(optimizer: Optimizer, beta: bool, values: Sequence[Any]) -> None:
    """Set the momentum of every group."""
    for group, value in zip(optimizer.param_groups, values, strict=True):
        if beta:
            group["betas"] = (value, *group["betas"][1:])
        else:
            group["momentum"] = value


def begin(optimizer: Optimizer, beta: bool, most: Sequence[Any], least: Sequence[Any]) -> None:
    """Set the momentum of every group to its maximum, and record both bounds in the group."""
    write(optimizer, beta, most)
    for group, upper, lower in zip(optimizer.param_groups, most, least, strict=True):
        group["max_momentum"] = upper
        group["base_momentum"] = lower
