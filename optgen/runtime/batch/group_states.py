"""Keep the states of groups, and give each parameter copies of them to compute with.

A step computes the same value for all copies of a state, from numbers that the parameters share.
The group keeps the state under its key, as a 0-dim tensor. So checkpoints hold the state. A state
of all groups is one tensor, which each group has under the key.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.check_batch import check_storages
from optgen.runtime.batch.step_context import OptimizerWithContext
from optgen.runtime.rule import Group, OptimizerLike, Rule, State
from optgen.runtime.torch_private import foreach_clone, is_inference


def create_group_states(optimizer: OptimizerWithContext) -> None:
    """Create the states that groups lack, on the device of the first parameter.

    A group or a checkpoint may hold a state as a number, or as a tensor of another dtype or on
    another device; such a state is converted. If a user has set a state of all groups in one of
    them, the others get the value too.

    Raises:
        TypeError: a group holds something else under the key of a state.
        ValueError: a group holds a tensor of several elements under the key of a state; or a state
            of all groups was set to different values.
    """
    groups = optimizer.param_groups
    for state in optimizer.rule.group_states:
        if state.of_all:
            _share(optimizer, state, groups)
        else:
            for group in groups:
                group[state.key] = _as_state(state, group.get(state.key), [group])


def _share(optimizer: OptimizerWithContext, state: State, groups: Sequence[Group]) -> None:
    """Give these groups one tensor for a state of all groups, with the value that a user has set.

    Raises:
        ValueError: the groups have different values, and more than one of them is new.
    """
    last = optimizer._context.shared_states.get(state.key)
    entries = [(index, group.get(state.key)) for index, group in enumerate(groups)]
    new = [(index, value) for index, value in entries if not (value is None or value is last)]
    for _, value in new:
        _check_number(state.key, value)
    for index, value in new[1:]:
        if value is not new[0][1] and float(value) != float(new[0][1]):
            _refuse(state.key, float(new[0][1]), float(value), (new[0][0], index))
    value = _as_state(state, new[0][1] if new else last, groups)
    optimizer._context.shared_states[state.key] = value
    for group in groups:
        group[state.key] = value


def _refuse(key: str, first: float, second: float, indices: tuple[int, int]) -> None:
    """Raise the error about two groups with different values of a state of all groups."""
    raise ValueError(
        f"{key} is one number for all groups, and group {indices[0]} has {first:g}, group "
        f"{indices[1]} has {second:g}: set it in one group, and the others follow"
    )


def _as_state(state: State, value: Any, groups: Sequence[Group]) -> Tensor:
    """Return a value as the tensor that these groups keep; for None, the initial value."""
    _check_number(state.key, value)
    devices = (param.device for group in groups for param in group["params"])
    device, dtype = next(devices, None), getattr(torch, state.dtype or "float64")
    if isinstance(value, Tensor) and not value.is_meta:
        number = value.to(device, dtype)
        if is_inference(number) and not torch.is_inference_mode_enabled():
            number = number.clone()  # the step writes to it
        return number if number.dim() == 0 else number.reshape(())
    start = value if isinstance(value, int | float) else _initial_value(state, groups[0])
    return torch.full((), float(start), dtype=dtype, device=device)


def _check_number(key: str, value: object) -> None:
    if message := _why_no_number(value):
        error = ValueError if isinstance(value, Tensor) else TypeError
        raise error(f"{key} of a group must be {message}")
    if isinstance(value, Tensor):
        check_storages({f"{key} of a group": [value]})


def _why_no_number(value: object) -> str:
    """Return the end of an error message if a value is neither a number nor None; else ""."""
    if isinstance(value, Tensor) and value.numel() != 1:
        return f"one number, and has {value.numel()} elements"
    if value is not None and not isinstance(value, Tensor | int | float):
        return f"a number, not {value!r}"
    return ""


def adopt_group_states(optimizer: OptimizerWithContext) -> None:
    """Create the states of the newest group; copy tensors that the user gave as states.

    Raises:
        ValueError: the user gave the group another value of a state than all groups have.
    """
    *groups, group = optimizer.param_groups
    for state in optimizer.rule.group_states:
        if isinstance(value := group.get(state.key), Tensor):
            group[state.key] = value.detach().clone()
        if state.of_all and groups:
            _share(optimizer, state, groups)
            given, shared = group.get(state.key), groups[0][state.key]
            _check_number(state.key, given)
            if given is not None and float(given) != shared.item():
                _refuse(state.key, shared.item(), float(given), (0, len(groups)))
            group[state.key] = shared
    create_group_states(optimizer)


def share_loaded_states(optimizer: OptimizerLike) -> None:
    """Give all groups of a loaded checkpoint one tensor for each state of all groups.

    Older checkpoints may have a value for each group. The first group that has left its initial
    values then gives its values to the others: those have taken no steps, or fewer.
    """
    states, groups = optimizer.rule.all_states, optimizer.param_groups
    if not states or not groups:
        return
    entries = (group.get(state.key) for group in groups for state in states)
    if any(map(_why_no_number, entries)):
        return  # the next step raises the error
    values = [[_number_or_start(state, group) for state in states] for group in groups]
    starts = [[_initial_value(state, group) for state in states] for group in groups]
    pairs = enumerate(zip(values, starts, strict=True))
    source = next((index for index, (own, start) in pairs if own != start), 0)
    if any(own != values[source] for own in values):
        keys = ", ".join(state.key for state in states)
        warnings.warn(
            f"the groups of this checkpoint have different values of {keys}: "
            f"{type(optimizer).__name__} has one value for all groups, and takes those of group "
            f"{source}, the first that has taken a step",
            stacklevel=2,
        )
    for state, number in zip(states, values[source], strict=True):
        value = _as_state(state, number, groups)
        for group in groups:
            group[state.key] = value


def _number_or_start(state: State, group: Group) -> float:
    """Return the number that a loaded group has for a state, or else the initial value."""
    value = group.get(state.key)
    return float(_initial_value(state, group) if value is None else value)


def group_state_columns(
    rule: Rule, group: Group, members: Sequence[Tensor]
) -> dict[str, list[Tensor]]:
    """Return copies of the group's states, by key, one for each parameter on its device."""
    if not members:
        return {}
    return {
        state.key: list(foreach_clone([group[state.key].to(param.device) for param in members]))
        for state in rule.group_states
    }


def store_group_states(rule: Rule, batches: Iterable[Batch]) -> None:
    """Store the states of the first parameter of each group; all parameters have equal ones."""
    stored_by_all = False
    for batch in batches:
        for state, column in zip(rule.states, batch.states, strict=True) if batch.members else ():
            if state.of_group and column and not (state.of_all and stored_by_all):
                batch.group[state.key].copy_(column[0].detach())
        stored_by_all = stored_by_all or bool(batch.members)


def _initial_value(state: State, group: Mapping[str, Any]) -> Any:
    """Return the number that a state begins with: a constant, or a hyperparameter's value."""
    value = group[state.init] if isinstance(state.init, str) else state.init
    return value.detach() if isinstance(value, Tensor) else value
