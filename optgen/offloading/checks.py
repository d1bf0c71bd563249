"""Refuse parameters and gradients that cannot be offloaded, before anything moves.

A gradient that changes while it is copied is found later, by `bucket_pipeline.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from optgen.offloading.buckets import HostParam, Kind
from optgen.runtime.rule import Rule
from optgen.runtime.tensors.dtensor import (
    check_not_partial,
    is_dtensor,
    same_sharding,
    to_local,
)

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def check_param(param: Tensor, name: str) -> None:
    """Raise a ValueError for a parameter that cannot be offloaded; the message says why."""
    reason = _why_not(param)
    if reason:
        raise ValueError(f"offload cannot take {name}: {reason}")


def check_group(group: Mapping[str, Any], index: int, rule: Rule) -> None:
    """Raise a ValueError for the options of a group that the host cannot follow."""
    if group.get("differentiable") or group.get("capturable"):
        raise ValueError("offload takes no differentiable or capturable steps")
    if group.get("view") is not None and not rule.elementwise:
        raise ValueError("offload takes no view= of groups: the rule sees whole parameters")
    if len(set(group["params"])) < len(group["params"]):
        raise ValueError(f"group {index} lists a parameter twice")


def check_sharding(param: Tensor, name: str, rule: Rule) -> None:
    """Raise a ValueError for a parameter of several ranks that the rule cannot step in parts."""
    if not is_dtensor(type(param)):
        return
    check_not_partial([param])
    reason = (
        "the rule sums over whole parameters"
        if not rule.elementwise
        else "the rule draws random numbers by the positions of elements"
        if rule.draws
        else ""
    )
    if reason:
        raise ValueError(
            f"offload cannot take {name}: it is sharded, {reason}, and the host steps the shard of "
            "its rank alone; give it an optimizer on the device"
        )


def check_any_on_device(params: Iterable[Tensor]) -> None:
    """Raise a ValueError if all parameters are on the CPU."""
    if all(param.device.type == "cpu" for param in params):
        raise ValueError(
            "nothing to offload: all parameters are on the CPU, where an optimizer of optgen.optim "
            "steps them with the same kernel"
        )


def _why_not(param: Tensor) -> str:
    if param.device.type == "cpu":
        return "it is on the CPU, so there is nothing to offload; give it another optimizer"
    if param.is_meta:
        return "it is on the meta device, without values: make the optimizer after to_empty()"
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or param.device.type != accelerator.type:
        return f"it is on {param.device}, and torch's accelerator is {accelerator}"
    if param.layout != torch.strided:
        return f"its layout is {param.layout}"
    if param.is_complex():
        return "it is complex"
    if param.dtype not in _DTYPES:
        hint = "the host keeps weights in float32, which would round it"
        return f"it is of {param.dtype}" + (f": {hint}" if param.dtype == torch.float64 else "")
    return ""


def check_gradient(param: Tensor, grad: Tensor, name_of: Callable[[], str]) -> None:
    """Raise an error for a gradient that the host cannot take.

    `name_of` returns the parameter's name, for the message.

    Raises:
        RuntimeError: It is sparse, or its shape, device or placements are not the parameter's.
        TypeError: Its dtype is not the parameter's.
    """
    if grad.layout != torch.strided:
        raise RuntimeError(f"the gradient of {name_of()} is sparse, and offload takes dense ones")
    if grad.shape != param.shape or grad.device != param.device:
        raise RuntimeError(
            f"the gradient of {name_of()} has the shape {tuple(grad.shape)} on {grad.device}, and "
            f"the parameter {tuple(param.shape)} on {param.device}"
        )
    if grad.dtype != param.dtype:
        raise TypeError(
            f"the gradient of {name_of()} is of {grad.dtype}, and it is of {param.dtype}"
        )
    if is_dtensor(type(param)) and not (is_dtensor(type(grad)) and same_sharding(param, grad)):
        raise RuntimeError(f"the gradient of {name_of()} has other placements than it")


def check_kind(owner: HostParam, bucket_bytes: int) -> None:
    """Raise a RuntimeError if a parameter was converted or moved since the optimizer was made."""
    now, before = Kind.of(owner.param), owner.kind
    if before is not None and now.bytes <= bucket_bytes:  # else it is in pieces, without gaps
        now = now._replace(is_contiguous=before.is_contiguous)
    if before not in (None, now):
        raise RuntimeError(
            f"{owner.name} is now ({now}), and was ({before}) when offload was called: convert "
            "and move the model before, or make a new optimizer and load the state_dict() of this "
            "one"
        )


def check_states(rule: Rule, owner: HostParam) -> None:
    """Raise a ValueError for a state that the kernel cannot use: someone has replaced it."""
    like = owner.local
    for state in rule.states:
        value = owner.tensor(state.key)
        if value is None:
            continue
        local = to_local(value)
        count = 1 if state.shape == "scalar" else prod(state.shape_for(like))
        if local.device.type != "cpu" or not local.is_contiguous() or local.numel() != count:
            raise ValueError(
                f"the state {state.key!r} of {owner.name} was replaced by a tensor of the shape "
                f"{tuple(local.shape)} on {local.device}, which the host cannot use"
            )
