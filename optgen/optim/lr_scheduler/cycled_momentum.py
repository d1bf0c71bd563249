"""Set the momentum that cycles inversely to the rate: `momentum`, or the first of `betas`."""

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer


def uses_beta1(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer's momentum is the first of its betas.

    Raises:
        ValueError: The optimizer has neither `momentum` nor `betas`.
    """
    if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
        raise ValueError(
            "optimizer must support momentum or beta1 with `cycle_momentum` option enabled"
        )
    return "betas" in optimizer.defaults


def write(optimizer: Optimizer, use_beta1: bool, values: Sequence[Any]) -> None:
    """Set the momentum of every group."""
    for group, value in zip(optimizer.param_groups, values, strict=True):
        if use_beta1:
            group["betas"] = (value, *group["betas"][1:])
        else:
            group["momentum"] = value


def begin(
    optimizer: Optimizer, use_beta1: bool, upper: Sequence[Any], lower: Sequence[Any]
) -> None:
    """Set the momentum of every group to its upper bound, and record both bounds in the group."""
    write(optimizer, use_beta1, upper)
    for group, highest, lowest in zip(optimizer.param_groups, upper, lower, strict=True):
        group["max_momentum"] = highest
        group["base_momentum"] = lowest
