"""Hand out the states of a group: each of its parameters computes with a copy of its own.

All copies get the same value in a step, because it follows from numbers that the parameters share.
The group keeps the state under its key, as a 0-dim tensor. So checkpoints have it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.protocols import Group
from optgen.runtime.rule import Rule, State
from optgen.runtime.torch_private import foreach_clone


def create_group_states(rule: Rule, group: Group) -> None:
    """Create the states that a group lacks, on the device of its first parameter.

    A state that a user or a checkpoint has set becomes a 0-dim tensor of its dtype on this device.
    """
    device = group["params"][0].device
    for state in rule.group_states:
        value = group.get(state.key)
        if value is None or (isinstance(value, Tensor) and value.is_meta):
            value = group[state.init] if isinstance(state.init, str) else state.init
        group[state.key] = _as_state(state, value, device)


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


def _as_state(state: State, value: Any, device: torch.device) -> Tensor:
    """Return the value itself if it is such a tensor, else a new one."""
    dtype = getattr(torch, state.dtype or "float64")
    if isinstance(value, Tensor) and (value.dtype, value.device, value.ndim) == (dtype, device, 0):
        return value
    return torch.full((), float(value), dtype=dtype, device=device)
