"""Step counts and scalar states: 0-dim tensors, or for some rules Python ints.

torch keeps these scalars on the CPU unless a group is fused or capturable. The Triton lowering
needs them on the parameters' devices in any group. So the scalars move there before the first
launch, as views of one tensor per device. Checkpoints get CPU copies, like torch's checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.rule import Rule
from optgen.runtime.torch_private import foreach_clone, scalar_dtype

_device = attrgetter("device")


def as_scalar(
    value: float,
    rule: Rule,
    group: Mapping[str, Any],
    param: Tensor,
    dtype: torch.dtype | None = None,
    on_device: bool = False,
) -> Tensor:
    """Make a 0-dim tensor in this dtype, or in the dtype that torch's scalars have.

    The tensor lives on the parameter's device if `on_device`, else on `scalar_device`.
    """
    dtype = dtype or scalar_dtype(bool(group.get("fused")))
    device = param.device if on_device else scalar_device(rule, group, param)
    return torch.full((), value, dtype=dtype, device=device)


def as_scalars(
    value: float,
    rule: Rule,
    group: Mapping[str, Any],
    params: list[Tensor],
    dtype: torch.dtype | None = None,
    on_device: bool = False,
) -> Sequence[Tensor]:
    """Make a scalar, as `as_scalar` does, for each of several parameters."""
    on_param_device = on_device or scalars_on_param_device(rule, group)
    if not params or (on_param_device and len(set(map(_device, params))) > 1):
        return [as_scalar(value, rule, group, param, dtype, on_device) for param in params]
    return foreach_clone([as_scalar(value, rule, group, params[0], dtype, on_device)] * len(params))


def scalar_device(rule: Rule, group: Mapping[str, Any], param: Tensor) -> torch.device | str:
    """Return the device of this parameter's step count and scalar states."""
    return param.device if scalars_on_param_device(rule, group) else "cpu"


def scalars_on_param_device(rule: Rule, group: Mapping[str, Any]) -> bool:
    """Tell whether scalars live on their parameter's device: by the rule, or by group options.

    The device itself reads the scalars of a capturable group, and of a fused one, unless the rule
    is on whole matrices: the host then reads them between the kernels.
    """
    by_rule = rule.scalar_device == "param"
    by_kernels = group.get("fused") and not rule.why_uncut
    return by_rule or bool(by_kernels or group.get("capturable"))


def counts_as_tensors(dicts: list[dict[str, Any]]) -> list[Tensor]:
    """Convert step counts from Python ints to float64 CPU tensors, exact up to 2**53.

    Parameters that share one dict of states share one tensor.
    """
    counts = {id(values): values["step"] for values in dicts}
    tensors = {
        key: torch.tensor(count, dtype=torch.float64, device="cpu") for key, count in counts.items()
    }
    return [tensors[id(values)] for values in dicts]


def store_int_counts(dicts: list[dict[str, Any]], steps: list[Tensor]) -> None:
    """Store step counts, given as tensors, as Python ints in the states."""
    for values, step in zip(dicts, steps, strict=True):
        values["step"] = int(step)


def move_scalars_to_param_devices(
    states: Sequence[dict[str, Any]], key: str, params: Sequence[Tensor]
) -> list[Tensor]:
    """Move the scalars under `key` to their parameters' devices; return them.

    Scalars that move become views of one new tensor per device.
    """
    moving_to: dict[torch.device, list[dict[str, Any]]] = {}
    for state, param in zip(states, params, strict=True):
        if state[key].device != param.device:
            moving_to.setdefault(param.device, []).append(state)
    for device, moving in moving_to.items():
        values = torch.stack([state[key].detach().cpu().reshape(()) for state in moving])
        for state, value in zip(moving, values.to(device).unbind(), strict=True):
            state[key] = value
    return [state[key] for state in states]


def copy_scalars_to_cpu(
    saved_states: Mapping[Any, dict[str, Any]],
    groups: Iterable[Mapping[str, Any]],
    keys: Sequence[str],
) -> dict[Any, dict[str, Any]]:
    """Return the states of a checkpoint with the scalars of the given groups copied to the CPU.

    Args:
        saved_states: the "state" of a state_dict; not changed.
        groups: some of the "param_groups" of the state_dict.
        keys: the keys of the scalars. Values under all other keys stay as they are.
    """
    to_copy: list[tuple[Any, str, Tensor]] = []
    for group in groups:
        for index in group["params"]:
            for key in keys:
                value = saved_states.get(index, {}).get(key)
                if isinstance(value, Tensor) and not value.is_cpu:
                    to_copy.append((index, key, value))
    result = dict(saved_states)
    for index in {index for index, _, _ in to_copy}:
        result[index] = dict(saved_states[index])
    copies = _copies_on_cpu([value for _, _, value in to_copy])
    for (index, key, _), copy in zip(to_copy, copies, strict=True):
        result[index][key] = copy
    return result


def _copies_on_cpu(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of scalars on the CPU, made by one transfer for each device and dtype."""
    by_device_and_dtype: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, tensor in enumerate(tensors):
        by_device_and_dtype.setdefault((tensor.device, tensor.dtype), []).append(index)
    result = list(tensors)
    for indices in by_device_and_dtype.values():
        chosen = [tensors[index] for index in indices]
        values = torch.cat([tensor.detach().reshape(-1) for tensor in chosen]).cpu()
        sizes = [tensor.numel() for tensor in chosen]
        for index, value in zip(indices, values.split(sizes), strict=True):
            # A checkpoint would store all values with a view.
            result[index] = value.clone().view(tensors[index].shape)
    return result
