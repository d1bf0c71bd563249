"""Load a state dict of torch's format into an offloaded optimizer; save and load gradient sums.

The public class loads it, over parameters on the CPU that stand for those on the host. So old
checkpoints, missing keys and dtypes are treated as everywhere else. Then the values are copied into
the states that the kernels know.

Gradients that are on the host between the backward passes of a step are in the states of their
parameters, under keys of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from optgen.offloading.buckets import HostParam
from optgen.runtime.rule import Rule
from optgen.runtime.state.create import state_keys
from optgen.runtime.tensors.dtensor import is_dtensor, to_local

Group = dict[str, Any]

GRADIENT_SUM = "gradient_sum"
"""The checkpoint key of the sum of a parameter's gradients since the last step."""

GRADIENT_COUNT = "gradient_count"
"""The checkpoint key of the number of these gradients."""


def loaded_by(
    public_class: Callable[..., Any],
    groups: list[Group],
    host_params: Mapping[Tensor, HostParam],
    hyper: Mapping[str, Any],
    state_dict: dict[str, Any],
) -> Any:
    """Return an optimizer of the public class with the same groups, which has loaded the dict.

    Its parameters are in the order of `groups`.
    """
    loaded = public_class(stand_in_groups(groups, host_params), **hyper)
    loaded.load_state_dict(state_dict)
    return loaded


def stand_in_groups(groups: list[Group], host_params: Mapping[Tensor, HostParam]) -> list[Group]:
    """Return groups for another optimizer: parameters on the CPU stand for those on the host.

    Nobody has written into the memory of these parameters.
    """
    stand_ins = [
        {**group, "params": [_stand_in(param, host_params) for param in group["params"]]}
        for group in groups
    ]
    names = [group.pop("param_names", None) for group in stand_ins]
    for group, group_names in zip(stand_ins, names, strict=True):
        if group_names is not None:
            group["params"] = list(zip(group_names, group["params"], strict=True))
    return stand_ins


def _stand_in(param: Tensor, host_params: Mapping[Tensor, HostParam]) -> Tensor:
    """Return memory on the CPU that nobody reads, for a parameter that is stepped on the host."""
    if param not in host_params:
        return param
    if is_dtensor(type(param)):
        return nn.Parameter(torch.empty_like(param, device="cpu"), requires_grad=False)
    return nn.Parameter(torch.empty(param.shape, dtype=param.dtype), requires_grad=False)


def param_pairs(groups: Sequence[Group], loaded: Any) -> list[tuple[Tensor, Tensor]]:
    """Return the parameters of groups, each with that of another optimizer with such groups."""
    return [
        pair
        for own, other in zip(groups, loaded.param_groups, strict=True)
        for pair in zip(own["params"], other["params"], strict=True)
    ]


def load_options(
    groups: Sequence[Group],
    loaded: Any,
    host_params: Mapping[Tensor, HostParam],
    make_states: Callable[[], None],
) -> None:
    """Take over the options of a loaded optimizer, and check its states.

    `make_states` makes the states that the options ask for, and what steps them. If it fails, or a
    loaded state does not fit, nothing is changed.

    Raises:
        ValueError: A loaded state does not fit.
    """
    before = [{**group} for group in groups]
    keys = {owner: {*owner.order} for owner in host_params.values()}
    try:
        for own_group, group in zip(groups, loaded.param_groups, strict=True):
            own_group.update({key: value for key, value in group.items() if key != "params"})
        make_states()
        for own, other in param_pairs(groups, loaded):
            if own in host_params:
                check_loaded(host_params[own], loaded.state.get(other, {}))
    except BaseException:
        for own_group, values in zip(groups, before, strict=True):
            own_group.clear()
            own_group.update(values)
        for owner, known in keys.items():
            owner.drop({*owner.order} - known)
        make_states()
        raise


def check_loaded(owner: HostParam, loaded: Mapping[str, Any]) -> None:
    """Raise a ValueError for a loaded state that does not fit, before any is copied."""
    for key, value in loaded.items():
        own = owner.tensor(key)
        if own is None:
            continue
        if not isinstance(value, Tensor) or value.shape != own.shape:
            shape = tuple(value.shape) if isinstance(value, Tensor) else value
            raise ValueError(
                f"the state {key!r} of {owner.name} has the shape {tuple(own.shape)}, and the "
                f"checkpoint's {shape}"
            )


@torch.no_grad()
def copy_loaded(
    owner: HostParam, loaded: Mapping[str, Any], rule: Rule, groups: Sequence[Group]
) -> list[str]:
    """Copy a parameter's loaded states; return the keys that the checkpoint lacks.

    Lacking states that a first step treats specially are made by the next one.
    """
    fresh = {*rule.fresh} & {*state_keys(rule, groups[owner.group_index])}
    lacking = []
    for key in [*owner.states, *owner.unmade]:
        own, value = owner.tensor(key), loaded.get(key)
        assert own is not None
        if isinstance(value, Tensor):
            to_local(own).copy_(to_local(value))
            if key in owner.unmade:
                owner.states[key] = owner.unmade.pop(key)
        elif key in fresh:
            owner.unmade.setdefault(key, own)
            owner.states.pop(key, None)
        else:
            lacking.append(key)
    return lacking


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
