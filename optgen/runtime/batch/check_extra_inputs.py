"""Extra inputs: tensors that are passed to one step beside the gradients, and only read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from optgen.runtime.batch.check_batch import check_storages
from optgen.runtime.rule import Group, Rule
from optgen.runtime.tensors.dtensor import is_dtensor, to_local
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


def checked_inputs(groups: Sequence[Group], arguments: Mapping[str, Any]) -> Inputs:
    """Check that each input fits its parameter; return the inputs by name and parameter."""
    params = [param for group in groups for param in group["params"]]
    return {name: _by_param(name, params, value) for name, value in arguments.items()}


def _by_param(name: str, params: Sequence[Tensor], value: Any) -> dict[int, Tensor]:
    """Check one argument of `step`; return its tensors by the identity of the parameter."""
    if isinstance(value, Tensor):
        raise TypeError(f"{name} is a list with a tensor or None per parameter, not a tensor")
    if not isinstance(value, Iterable):
        raise TypeError(f"{name} is a list with a tensor or None per parameter, not {value!r}")
    tensors = list(value)
    if len(tensors) != len(params):
        raise ValueError(f"{name} has {len(tensors)} entries for {len(params)} parameters")
    by_param = {}
    for index, (param, tensor) in enumerate(zip(params, tensors, strict=True)):
        if tensor is not None:
            _check_input(f"{name}[{index}]", param, tensor)
            check_storages({name: [to_local(tensor)]})
            by_param[id(param)] = _readable(tensor)
    return by_param


def _readable(tensor: Tensor) -> Tensor:
    """Return a tensor whose memory lowerings can read, maybe a copy."""
    if tensor.is_conj():
        return tensor.resolve_conj()
    return tensor.clone() if has_overlap(tensor) else tensor


def _check_input(name: str, param: Tensor, tensor: Any) -> None:
    """Raise an error for an input that does not fit its parameter."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}, not a tensor or None")
    _check_properties(name, param, tensor)
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


def _check_properties(name: str, param: Tensor, tensor: Tensor) -> None:
    """Raise an error if an input has another shape, dtype or device than its parameter."""
    for noun, (get, error) in _SHARED_PROPERTIES.items():
        if get(tensor) != get(param):
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
            raise ValueError(
                f"the rule needs {state.step_argument} for each parameter with a gradient, and a "
                f"parameter of shape {shape} has none: step({state.step_argument}=[…])"
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
