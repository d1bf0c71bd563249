"""Save and load gradients that are on the host between the backward passes of a step.

A checkpoint has them in the states of their parameters, under keys of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from optgen.runtime.tensors.dtensor import is_dtensor, to_local

Group = dict[str, Any]

GRADIENT_SUM = "gradient_sum"
"""The checkpoint key of the sum of a parameter's gradients since the last step."""

GRADIENT_COUNT = "gradient_count"
"""The checkpoint key of the number of these gradients."""


class LoadedSum(NamedTuple):
    """The sum of a parameter's gradients, and their number."""

    total: Tensor
    addends: int


def add_sums(
    packed: dict[str, Any],
    groups: Sequence[Group],
    sums: Mapping[Tensor, Tensor],
    counts: Mapping[Tensor, int],
) -> None:
    """Add the sums of gradients to a packed state dict, if there are any on the host.

    Gradients of small parameters are then those in `.grad`, and count as one.

    Args:
        packed: The state dict, by the indices of parameters.
        groups: The groups of the optimizer.
        sums: The sums on the host, by parameters: this rank's part, in one dimension.
        counts: How many gradients parameters have on the host.
    """
    if not counts:  # a `.grad` is then that of the last step
        return
    params = [param for group in groups for param in group["params"]]
    for index, param in enumerate(params):
        if param in counts:
            found = LoadedSum(_shaped(sums[param], param), counts[param])
        elif param not in sums and param.grad is not None:
            found = LoadedSum(param.grad.detach(), 1)
        else:
            continue
        packed["state"][index] = {
            **packed["state"].get(index, {}),
            GRADIENT_SUM: found.total,
            GRADIENT_COUNT: torch.tensor(float(found.addends)),
        }


def _shaped(total: Tensor, param: Tensor) -> Tensor:
    """Return a sum in the shape of its parameter, and sharded like it."""
    if not is_dtensor(type(param)):
        return total.view(param.shape)
    shaped = torch.empty_like(param.detach(), dtype=total.dtype, device="cpu")
    local = to_local(shaped)
    local.copy_(total.view(local.shape))
    return shaped


def without_sums(state_dict: dict[str, Any]) -> tuple[dict[str, Any], dict[Any, LoadedSum]]:
    """Return a state dict without sums of gradients, and these sums by their keys in it."""
    found: dict[Any, LoadedSum] = {}
    states: dict[Any, Any] = {}
    for key, values in state_dict["state"].items():
        if GRADIENT_SUM in values:
            found[key] = LoadedSum(values[GRADIENT_SUM], int(values[GRADIENT_COUNT]))
        kept = {GRADIENT_SUM, GRADIENT_COUNT}
        states[key] = {name: value for name, value in values.items() if name not in kept}
    return ({**state_dict, "state": states}, found) if found else (state_dict, {})


def sums_by_param(
    sums: Mapping[Any, LoadedSum], state_dict: Mapping[str, Any], groups: Sequence[Group]
) -> dict[Tensor, LoadedSum]:
    """Return loaded sums by the parameters of groups, which are those of the dict in order.

    Raises:
        ValueError: The shape of a sum is not its parameter's.
    """
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    params = [param for group in groups for param in group["params"]]
    found = {param: sums[key] for key, param in zip(keys, params, strict=True) if key in sums}
    for param, (total, _) in found.items():
        if total.shape != param.shape or is_dtensor(type(total)) != is_dtensor(type(param)):
            raise ValueError(
                f"the state {GRADIENT_SUM!r} of a parameter of the shape {tuple(param.shape)} has "
                f"the shape {tuple(total.shape)} in the checkpoint, or another sharding"
            )
    return found


def check_sums(sums: Mapping[Tensor, LoadedSum], stores_gradients: bool) -> None:
    """Raise a ValueError for loaded sums, unless the optimizer keeps gradients on the host."""
    if sums and not stores_gradients:
        raise ValueError(
            "the checkpoint was saved between the backward passes of a step, and has gradients of "
            'the host: load it with gradients="leave" and another hide= than "backward", or take '
            f"out its keys {GRADIENT_SUM!r} and {GRADIENT_COUNT!r}"
        )
