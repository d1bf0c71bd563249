"""Move step counts and scalar states to a device, where a fused kernel updates them, and back.

torch keeps these scalars on the CPU unless a group is fused or capturable. The Triton lowering
needs them on the parameters' devices in any group. So the scalars move there before the first
launch, as views of one tensor per device. Checkpoints get CPU copies, like torch's checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


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
        values = torch.stack([tensors[index].detach().reshape(()) for index in indices]).cpu()
        for index, value in zip(indices, values.unbind(), strict=True):
            result[index] = value.clone()  # a checkpoint would store the whole stack with a view
    return result
