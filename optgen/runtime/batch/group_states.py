"""Hand out the states of a group: each of its parameters computes with a copy of its own.

All copies get the same value in a step, because it follows from numbers that the parameters share.
The group keeps the state under its key, as a 0-dim tensor. So checkpoints have it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.protocols import Group
from optgen.runtime.rule import Rule, State
from optgen.runtime.torch_private import foreach_clone


def create_group_states(rule: Rule, group: Group) -> None:
    """Create the states that a group lacks, on the device of its first parameter.

    A load may have left them on another device; they are moved.
    """
    device = group["params"][0].device
    for state in rule.group_states:
        value = group.get(state.key)
        if not isinstance(value, Tensor) or value.is_meta:
            group[state.key] = _initial_value(state, group, device)
        elif value.device != device:
            group[state.key] = value.to(device)


def group_state_columns(
    rule: Rule, group: Group, members: Sequence[Tensor]
) -> dict[str, list[Tensor]]:
    """Return copies of the group's states, by key, one for each parameter on its device."""
    if not members:
        return {}
    create_group_states(rule, group)
    return {
        state.key: list(foreach_clone([group[state.key].to(param.device) for param in members]))
        for state in rule.group_states
    }


def store_group_states(rule: Rule, batch: Batch) -> None:
    """Store in the group what its first parameter has computed; all have computed the same."""
    for state, column in zip(rule.states, batch.states, strict=True):
        if state.of_group and column:
            batch.group[state.key].copy_(column[0].detach())


def _initial_value(state: State, group: Mapping[str, Any], device: torch.device) -> Tensor:
    start = group[state.init] if isinstance(state.init, str) else state.init
    dtype = getattr(torch, state.dtype or "float64")
    return torch.full((), float(start), dtype=dtype, device=device)
