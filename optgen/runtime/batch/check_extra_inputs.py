"""Extra inputs: tensors that are passed to one step beside the gradients, and only read."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from optgen.runtime.batch.check_batch import check_storages
from optgen.runtime.rule import Group, Rule, State
from optgen.runtime.tensors.dtensor import is_dtensor, to_local
from optgen.runtime.tensors.group_view import seen_params
from optgen.runtime.tensors.layout import span
from optgen.runtime.torch_private import has_overlap, local_tensor

Inputs: TypeAlias = Mapping[str, Mapping[int, Tensor]]
"""The inputs of a step, by name and by the identity of the parameter."""

_get_sharding = attrgetter("device_mesh", "placements")
_SHARED_PROPERTIES: dict[str, tuple[Callable[[Tensor], Any], type[Exception]]] = {
    "shape": (lambda tensor: tuple(tensor.shape), ValueError),
    "dtype": (attrgetter("dtype"), TypeError),
    "device": (attrgetter("device"), RuntimeError),
}
"""Properties in which an input must equal its parameter: for each, a getter and an error class."""


def check_input_names(class_name: str, rule: Rule, names: Iterable[str]) -> None:
    """Raise Python's TypeError for an argument of `step` that is no input of the rule."""
    known_names = [state.step_argument for state in rule.inputs]
    for name in names:
        if name not in known_names:
            raise TypeError(f"{class_name}.step() got an unexpected keyword argument {name!r}")


def checked_inputs(rule: Rule, groups: Sequence[Group], arguments: Mapping[str, Any]) -> Inputs:
    """Check that each input fits its parameter; return the inputs by name and parameter."""
    states = {state.step_argument: state for state in rule.inputs}
    return {name: _by_param(rule, states[name], groups, arg) for name, arg in arguments.items()}


def _by_param(rule: Rule, state: State, groups: Sequence[Group], value: Any) -> dict[int, Tensor]:
    """Check one argument of `step`; return its tensors by the identity of the parameter."""
    name, params = state.step_argument, [param for group in groups for param in group["params"]]
    if state.shape == "scalar":
        return _numbers(name, params, value)
    if isinstance(value, Tensor):
        raise TypeError(f"{name} is a list with a tensor or None per parameter, not a tensor")
    if not isinstance(value, Iterable):
        raise TypeError(f"{name} is a list with a tensor or None per parameter, not {value!r}")
    tensors = list(value)
    if len(tensors) != len(params):
        raise ValueError(f"{name} has {len(tensors)} entries for {len(params)} parameters")
    by_param = {}
    shapes = list(_shapes(rule, state, groups))
    for index, (param, tensor) in enumerate(zip(params, tensors, strict=True)):
        if tensor is not None:
            _check_input(f"{name}[{index}]", param, tensor, shapes[index])
            check_storages({name: [to_local(tensor)]})
            by_param[id(param)] = _readable(tensor)
    return by_param


def _shapes(rule: Rule, state: State, groups: Sequence[Group]) -> Iterator[tuple[int, ...] | None]:
    """Yield the shape of each parameter's input; None stands for that of the parameter."""
    for group in groups:
        for seen in seen_params(rule, group, group["params"]):
            shape = None if state.shape == "like" else state.shape_for(seen, rule.rank(group))
            yield None if shape is None else tuple(shape)


def _numbers(name: str, params: Sequence[Tensor], value: Any) -> dict[int, Tensor]:
    """Return one number for all parameters as a tensor on the device of each."""
    is_number = isinstance(value, (int, float)) or (
        isinstance(value, Tensor) and value.numel() == 1 and value.is_floating_point()
    )
    if not is_number:
        raise TypeError(f"{name} is one number for all parameters, not {value!r}")
    devices = {local_tensor(p).device if is_dtensor(type(p)) else p.device for p in params}
    by_device = {
        device: torch.as_tensor(value, dtype=torch.float64, device=device).detach().reshape(())
        for device in devices
    }
    return {id(param): by_device[param.device] for param in params}


def _readable(tensor: Tensor) -> Tensor:
    """Return a tensor whose memory lowerings can read, maybe a copy."""
    if tensor.is_conj():
        return tensor.resolve_conj()
    return tensor.clone() if has_overlap(tensor) else tensor


def _check_input(
    name: str, param: Tensor, tensor: Any, shape: tuple[int, ...] | None = None
) -> None:
    """Raise an error for an input that does not fit its parameter.

    Its shape is `shape`, or that of the parameter.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}, not a tensor or None")
    if shape is not None and is_dtensor(type(param)):
        raise TypeError(
            f"{name} has another shape than its parameter, which is a DTensor: such inputs are for "
            "whole parameters"
        )
    if shape is not None and tuple(tensor.shape) != shape:
        raise ValueError(
            f"{name} has the shape {tuple(tensor.shape)}, but its parameter of shape "
            f"{tuple(param.shape)} needs {shape}"
        )
    _check_properties(name, param, tensor, has_shape=shape is None)
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} is sparse: extra inputs are dense")
    if is_dtensor(type(param)) != is_dtensor(type(tensor)):
        own_class, param_class = "no DTensor", "a DTensor"
        if is_dtensor(type(tensor)):
            own_class, param_class = param_class, own_class
        raise TypeError(f"{name} is {own_class}, but its parameter is {param_class}")
    if is_dtensor(type(param)) and _get_sharding(param) != _get_sharding(tensor):
        raise ValueError(f"{name} is not sharded as its parameter is: redistribute it first")
    if is_dtensor(type(param)):
        _check_properties(f"the local tensor of {name}", local_tensor(param), local_tensor(tensor))
    if _ranges_overlap(tensor, param):
        raise ValueError(f"{name} is in the parameter's memory, which the step changes: clone it")


def _check_properties(name: str, param: Tensor, tensor: Tensor, has_shape: bool = True) -> None:
    """Raise an error if an input has another shape, dtype or device than its parameter."""
    for noun, (get, error) in _SHARED_PROPERTIES.items():
        if get(tensor) != get(param) and (has_shape or noun != "shape"):
            raise error(f"{name} has the {noun} {get(tensor)}, but its parameter {get(param)}")


def _ranges_overlap(tensor: Tensor, other: Tensor) -> bool:
    """Tell whether the address ranges of two tensors overlap."""
    start, end = _address_range(tensor)
    other_start, other_end = _address_range(other)
    return start < other_end and other_start < end


def _address_range(tensor: Tensor) -> tuple[int, int]:
    """Return the start and end address of the memory of a tensor, or of a DTensor's shard."""
    local = local_tensor(tensor) if is_dtensor(type(tensor)) else tensor
    if not local.numel():
        return 0, 0
    return local.data_ptr(), local.data_ptr() + span(local) * local.element_size()


def input_columns(rule: Rule, inputs: Inputs, members: Sequence[Tensor]) -> dict[str, list[Any]]:
    """Return the inputs by key: a list with the tensor, or None, of each parameter.

    The list of an input that no parameter has is empty.

    Raises:
        ValueError: the rule needs an input that a parameter lacks.
    """
    columns = {}
    for state in rule.inputs:
        tensors = inputs.get(state.step_argument, {})
        column = [tensors.get(id(member)) for member in members]
        if state.when is None and any(tensor is None for tensor in column):
            index = next(i for i, tensor in enumerate(column) if tensor is None)
            shape = tuple(members[index].shape)
            form = f"step({state.step_argument}={'…' if state.shape == 'scalar' else '[…]'})"
            raise ValueError(
                f"the rule needs {state.step_argument} for each parameter with a gradient, and a "
                f"parameter of shape {shape} has none: {form}"
            )
        columns[state.key] = column if any(tensor is not None for tensor in column) else []
    return columns


def flags_of_inputs(
    rule: Rule, columns: Mapping[str, list[Any]], count: int
) -> list[tuple[tuple[str, bool], ...]]:
    """Return, for each of `count` parameters, the flags of the optional inputs and their values.

    The value of a flag is True if the parameter has the input.
    """
    flags_and_columns = [
        (state.when, columns[state.key] or [None] * count) for state in rule.inputs
    ]
    return [
        tuple((flag, column[index] is not None) for flag, column in flags_and_columns if flag)
        for index in range(count)
    ]
