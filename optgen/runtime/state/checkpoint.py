"""Load checkpoints of torch's class and of older versions; save what torch's class can load."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from optgen.runtime.rule import Group, OptimizerLike, Rule, State
from optgen.runtime.state.create import as_stored, dtype_of, has_codes
from optgen.runtime.state.scalars import (
    as_scalar,
    copy_scalars_to_cpu,
    scalar_device,
    scalars_on_param_device,
)
from optgen.runtime.tensors.dtensor import is_dtensor
from optgen.runtime.tensors.quantized import QuantizedTensor, to_numbers


def backfill(
    optimizer: Optimizer,
    previous_groups: list[Group],
    added: dict[str, Any],
    optional: Iterable[str] = (),
) -> None:
    """Give loaded groups the keys they lack: torch's load drops keys that the checkpoint lacks.

    A key in `added` gets the value there. Any other key keeps its value from before the load; if it
    had none, it gets the default.

    Args:
        optimizer: an optimizer that has just loaded a checkpoint.
        previous_groups: the groups before the load.
        added: keys that torch added to its class, and the values that torch's load gives them.
        optional: keys that a group gets only if it had them before the load.
    """
    wanted_keys = {*optimizer.defaults, *added, *optional}
    for index, group in enumerate(optimizer.param_groups):
        old_group = previous_groups[index] if index < len(previous_groups) else {}
        for key, value in {**optimizer.defaults, **old_group, **added}.items():
            if key in wanted_keys:
                group.setdefault(key, value)


def scalars_to_tensors(optimizer: OptimizerLike) -> None:
    """Convert Python numbers to tensors: step counts and scalar states of old checkpoints."""
    rule = optimizer.rule
    scalars = [state for state in rule.states if state.shape == "scalar"]
    declarations = {state.key: (state.dtype, state.on_device) for state in scalars}
    if rule.step == "tensor":
        declarations["step"] = (None, False)
    for group, param, states in _params_with_state(optimizer):
        for key, (dtype, on_device) in declarations.items():
            if key in states and not isinstance(states[key], Tensor):
                number, scalar_dtype = float(states[key]), getattr(torch, dtype) if dtype else None
                states[key] = as_scalar(number, rule, group, param, scalar_dtype, on_device)


def _params_with_state(optimizer: OptimizerLike) -> Iterator[tuple[Group, Tensor, dict[str, Any]]]:
    """Yield (group, parameter, its states by key) for every parameter that has states."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param in optimizer.state:
                yield group, param, optimizer.state[param]


def portable_state_dict(optimizer: OptimizerLike, packed: dict[str, Any]) -> dict[str, Any]:
    """Make `packed` a state dict that torch's class can load, and return it.

    Scalars that torch would keep on the CPU are replaced by CPU copies, and quantized states by
    float32 tensors. The optimizer's own states do not change.
    """
    rule = optimizer.rule
    keys = ["step", *(state.key for state in rule.states if state.is_host_scalar)]
    groups = [group for group in packed["param_groups"] if not scalars_on_param_device(rule, group)]
    packed["state"] = copy_scalars_to_cpu(packed["state"], groups, keys)
    if rule.quantized_states:
        packed["state"] = {index: _as_numbers(states) for index, states in packed["state"].items()}
    return packed


def _as_numbers(states: Any) -> Any:
    """Return a parameter's state with float32 numbers in place of codes."""
    if not isinstance(states, dict):
        return states
    return {key: to_numbers(value) for key, value in states.items()}


@dataclass(frozen=True)
class _HiddenTensor:
    """A wrapper that hides a tensor from torch's load, which would change the tensor's dtype."""

    value: Tensor


@contextmanager
def preserve_declared_dtypes(optimizer: Optimizer, rule: Rule) -> Iterator[None]:
    """Keep torch's load from converting states with a declared dtype to the parameters' dtype."""
    keys = {state.key for state in rule.states if state.dtype is not None}

    def hide(_: Optimizer, packed: dict[str, Any]) -> dict[str, Any]:
        states_by_param = packed["state"].items()
        hidden = {index: _hide_tensors(states, keys) for index, states in states_by_param}
        return {**packed, "state": hidden}

    if not keys:
        yield
        return
    hook = optimizer.register_load_state_dict_pre_hook(hide)
    try:
        yield
    finally:
        hook.remove()


def _hide_tensors(states: Any, keys: set[str]) -> Any:
    """Return a parameter's state with the tensors under these keys in wrappers."""
    if not isinstance(states, dict):
        return states
    return {
        key: _HiddenTensor(value) if key in keys and isinstance(value, Tensor) else value
        for key, value in states.items()
    }


def restore_declared_dtypes(optimizer: OptimizerLike) -> None:
    """Unwrap loaded states with a declared dtype; convert them, and move them to their devices."""
    rule = optimizer.rule
    declared_states = [state for state in rule.states if state.dtype is not None]
    for group, param, states in _params_with_state(optimizer) if declared_states else ():
        for state in declared_states:
            loaded = states.get(state.key)
            if isinstance(loaded, _HiddenTensor):
                is_host_scalar = state.is_host_scalar
                device = scalar_device(rule, group, param) if is_host_scalar else param.device
                dtype = dtype_of(state, param.dtype)
                if _has_format(loaded.value, state, param):
                    states[state.key] = loaded.value.to(device).clone()
                    continue
                numbers = to_numbers(loaded.value)
                is_shared = numbers is loaded.value  # with the state dict, unless converted
                value = numbers.to(dtype=dtype, device=device, copy=is_shared)
                if state.shape == "like" and value.shape == param.shape:
                    value = _in_layout_of(param, value)
                    value = as_stored(state, param, value) if state.is_quantized else value
                states[state.key] = value


def _in_layout_of(param: Tensor, value: Tensor) -> Tensor:
    """Return a state's value with the strides of a new state, which fused steps need.

    A checkpoint may have been saved from parameters in another memory format. DTensors keep their
    layout, because a copy between them may communicate.
    """
    if is_dtensor(type(param)) or is_dtensor(type(value)) or value.stride() == _new_stride(param):
        return value
    return torch.empty_like(param, dtype=value.dtype, device=value.device).copy_(value)


def _new_stride(param: Tensor) -> tuple[int, ...]:
    """Return the strides of a new state: those of the parameter if it is dense."""
    return torch.empty_like(param, device="meta").stride()


def _has_format(value: Tensor, state: State, param: Tensor) -> bool:
    """Tell whether a tensor has the codes that a state keeps, in the memory order of its parameter.

    Codes are loaded as they are, because encoding their numbers may round a scale differently.
    """
    return (
        isinstance(value, QuantizedTensor)
        and state.is_quantized
        and has_codes(state, param)
        and (value.block, value.map) == (state.block, state.map)
        and value.shape == param.shape
        and value.stride() == _new_stride(param)
    )
