"""Exchange parameters and state for a while, as torch 2.13 does; works on older torch too."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from torch import Tensor
from torch.optim import Optimizer

_NAME = "swap_in_optimizer_params_and_state"
_NEEDS_STATE_DICT = "requires optimizer.state_dict()-style"


@contextmanager
def swap_in_optimizer_params_and_state(
    optimizer: Optimizer,
    swapin_parameters: dict[str, Tensor],
    swapin_optim_state: dict[str, Any],
) -> Iterator[None]:
    """Let an optimizer work on other parameters, state and hyperparameters, and then restore it.

    In-place changes of a step to the state reach `swapin_optim_state`; a tensor that replaces
    another tensor does not.

    Args:
        optimizer: An optimizer that has a state.
        swapin_parameters: As many tensors as the optimizer has parameters, in their order.
        swapin_optim_state: A result of `optimizer.state_dict()`, for these parameters.

    Raises:
        RuntimeError: The optimizer has no state yet, or an argument does not fit the optimizer.
    """
    state, groups = _check_state_dict(optimizer, swapin_optim_state)
    params_by_group = _split_by_group(list(swapin_parameters.values()), state, groups)
    live_state, live_groups = optimizer.state, [dict(group) for group in optimizer.param_groups]
    try:
        for group, new_group, params in zip(
            optimizer.param_groups, groups, params_by_group, strict=True
        ):
            group.update({**new_group, "params": params})
        optimizer.state = defaultdict(dict)
        for params, new_group in zip(params_by_group, groups, strict=True):
            for param, key in zip(params, new_group["params"], strict=True):
                optimizer.state[param] = dict(state.get(key, {}))
        yield
    finally:
        for group, live in zip(optimizer.param_groups, live_groups, strict=True):
            group.clear()
            group.update(live)
        optimizer.state = live_state


def _check_state_dict(
    optimizer: Optimizer, state_dict: Any
) -> tuple[dict[Any, Any], list[dict[str, Any]]]:
    """Return a state dict's states and groups; raise torch's error if it does not fit."""
    if not optimizer.state:
        _fail("requires initialized optimizer state.")
    if not isinstance(state_dict, dict):
        _fail("requires a DCP-style optimizer state_dict.")
    state, groups = state_dict.get("state"), state_dict.get("param_groups")
    if not isinstance(state, dict):
        _fail(
            "requires swapin_optim_state['state'] to be a dict mapping packed parameter ids to "
            f"per-param state dicts, got {type(state).__name__}."
        )
    if any(isinstance(key, Tensor) for key in state):
        _fail(f"{_NEEDS_STATE_DICT} state keyed by packed parameter ids.")
    if any(isinstance(key, int) and not isinstance(each, dict) for key, each in state.items()):
        _fail("requires per-parameter optimizer state entries to be dictionaries.")
    if not isinstance(groups, list):
        _fail(
            "requires swapin_optim_state['param_groups'] to be a list of param-group dicts, got "
            f"{type(groups).__name__}."
        )
    if len(optimizer.param_groups) != len(groups):
        raise RuntimeError(
            "swapin_optim_state has a different number of parameter groups than the live optimizer."
        )
    for index, (live, group) in enumerate(zip(optimizer.param_groups, groups, strict=True)):
        _check_group(index, live, group)
    return state, groups


def _check_group(index: int, live: Mapping[str, Any], group: Any) -> None:
    if not isinstance(group, dict):
        _fail("requires each optimizer param group to be a dictionary.")
    keys = group.get("params")
    if not isinstance(keys, list) or not all(isinstance(key, int) for key in keys):
        _fail(
            f"{_NEEDS_STATE_DICT} param_groups[*]['params'] entries keyed by packed parameter ids."
        )
    if len(live["params"]) != len(keys):
        raise RuntimeError(
            f"swapin_optim_state param group {index} has a different number of params than the "
            "live optimizer param group."
        )
    swapin_only = [key for key in group if key not in live]
    live_only = [key for key in live if key not in group]
    if swapin_only or live_only:
        _fail(
            f"{_NEEDS_STATE_DICT} param group keys to exactly match the live optimizer group keys "
            f"for group {index}. Keys only in swap-in: {swapin_only}. "
            f"Keys only in live: {live_only}."
        )


def _split_by_group(
    parameters: list[Tensor], state: Mapping[Any, Any], groups: list[dict[str, Any]]
) -> list[list[Tensor]]:
    """Split the parameters by group; raise torch's error if they do not fit the groups."""
    params_by_group, start = [], 0
    for group in groups:
        end = start + len(group["params"])
        if end > len(parameters):
            _fail("requires the explicit parameter state to match optimizer.param_groups ordering.")
        params_by_group.append(parameters[start:end])
        start = end
    known_keys = {key for group in groups for key in group["params"]}
    if extra := [key for key in state if key not in known_keys]:
        _fail(
            "requires swapin_optim_state['state'] to be keyed only by packed parameter ids from "
            f"param_groups[*]['params']; got extra keys {extra!r}."
        )
    return params_by_group


def _fail(message: str) -> NoReturn:
    raise RuntimeError(f"{_NAME} {message}")
