"""Give each parameter of a group copies of the group's states to compute with.

A step computes the same value for all copies of a state, from numbers that the parameters share.
The group keeps the state under its key, as a 0-dim tensor. So checkpoints hold the state.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.checks import check_storages
from optgen.runtime.protocols import Group
from optgen.runtime.rule import Rule, State
from optgen.runtime.torch_private import foreach_clone


def create_group_states(rule: Rule, group: Group) -> None:
    """Create the states that a group lacks, on the device of its first parameter.

    A group or a checkpoint may hold a state as a number, or as a tensor of another dtype or on
    another device; such a state is converted.

    Raises:
        TypeError: a group holds something else under the key of a state.
        ValueError: a group holds a tensor of several elements under the key of a state.
    """
    device = group["params"][0].device if group["params"] else None
    for state in rule.group_states:
        value, dtype = group.get(state.key), getattr(torch, state.dtype or "float64")
        _check_number(state.key, value)
        if isinstance(value, Tensor) and not value.is_meta:
            value = value.to(device, dtype)
            group[state.key] = value.reshape(())
        else:
            number = value if isinstance(value, int | float) else _initial_value(state, group)
            group[state.key] = torch.full((), float(number), dtype=dtype, device=device)


def _check_number(key: str, value: object) -> None:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ValueError(f"{key} of a group must be one number, and has {value.numel()} elements")
    if isinstance(value, Tensor):
        check_storages({f"{key} of a group": [value]})
    if value is not None and not isinstance(value, Tensor | int | float):
        raise TypeError(f"{key} of a group must be a number, not {value!r}")


def adopt_group_states(rule: Rule, group: Group) -> None:
    """Create the states of a new group; copy tensors that the user gave as states."""
    for state in rule.group_states:
        if isinstance(value := group.get(state.key), Tensor):
            group[state.key] = value.detach().clone()
    create_group_states(rule, group)


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
    """Store the states of the first parameter in the group; all parameters have equal ones."""
    for state, column in zip(rule.states, batch.states, strict=True):
        if state.of_group and column:
            batch.group[state.key].copy_(column[0].detach())


def _initial_value(state: State, group: Mapping[str, Any]) -> Any:
    """Return the number that a state begins with: a constant, or a hyperparameter's value."""
    value = group[state.init] if isinstance(state.init, str) else state.init
    return value.detach() if isinstance(value, Tensor) else value
