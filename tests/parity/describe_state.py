"""Describe an optimizer's state without its numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

Description = list[list[tuple[str, Any]]]


def describe_state(optimizer: Optimizer) -> Description:
    """Return every parameter's keys, in order, with a description of the values in a checkpoint.

    LBFGS's `t` is a number here; in torch it may be the tensor that holds the learning rate.
    """
    return [
        [(key, key if key == "t" else _described(value)) for key, value in entry.items()]
        for entry in optimizer.state_dict()["state"].values()
    ]


def _described(value: Any) -> Any:
    if isinstance(value, list):
        return [_described(element) for element in value]
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride(), value.device, value.requires_grad
    return type(value)
