"""Describe an optimizer's state without its values."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

Description = list[list[tuple[str, Any]]]


def describe_state(optimizer: Optimizer) -> Description:
    """Return the keys of each parameter's state in order, each with dtype, shape and so on.

    LBFGS's `t` has no description: ours is a number; torch's may be the learning rate's tensor.
    """
    return [
        [(key, key if key == "t" else _description(value)) for key, value in entry.items()]
        for entry in optimizer.state_dict()["state"].values()
    ]


def _description(value: Any) -> Any:
    if isinstance(value, list):
        return [_description(element) for element in value]
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride(), value.device, value.requires_grad
    return type(value)
