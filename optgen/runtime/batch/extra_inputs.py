"""Extra inputs: tensors that one step is handed beside the gradients, and that it only reads."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from optgen.runtime.protocols import Group
from optgen.runtime.rule import Rule
from optgen.runtime.tensors.dtensor import is_dtensor
from optgen.runtime.torch_private import has_overlap, local_tensor

Inputs: TypeAlias = Mapping[str, Mapping[int, Tensor]]
"""The inputs of a step, by name and by the identity of the parameter."""

_PLACE = attrgetter("device_mesh", "placements")
_COMPARED: dict[str, tuple[Callable[[Tensor], Any], type[Exception]]] = {
    "shape": (lambda tensor: tuple(tensor.shape), ValueError),
    "dtype": (attrgetter("dtype"), TypeError),
    "device": (attrgetter("device"), RuntimeError),
}
"""Properties that an input shares with its parameter, and the error if it does not."""


def check_names(name: str, rule: Rule, given: Iterable[str]) -> None:
    """Raise Python's TypeError for an argument of `step` that is no input of the rule."""
    known = [state.given for state in rule.inputs]
    for key in given:
        if key not in known:
            raise TypeError(f"{name}.step() got an unexpected keyword argument {key!r}")


def checked_inputs(groups: Sequence[Group], given: Mapping[str, Any]) -> Inputs:
    """Check that each input fits its parameter; return the inputs by name and parameter."""
    params = [param for group in groups for param in group["params"]]
    return {key: _by_param(key, params, tensors) for key, tensors in given.items()}


def _by_param(key: str, params: Sequence[Tensor], given: Any) -> dict[int, Tensor]:
    if isinstance(given, Tensor):
        raise TypeError(f"{key} is a list with a tensor or None per parameter, not a tensor")
    if not isinstance(given, Iterable):
        raise TypeError(f"{key} is a list with a tensor or None per parameter, not {given!r}")
    tensors = list(given)
    if len(tensors) != len(params):
        raise ValueError(f"{key} has {len(tensors)} entries for {len(params)} parameters")
    found = {}
    for number, (param, tensor) in enumerate(zip(params, tensors, strict=True)):
        if tensor is not None:
            _check(f"{key}[{number}]", param, tensor)
            found[id(param)] = _readable(tensor)
    return found


def _readable(tensor: Tensor) -> Tensor:
    """Return a tensor whose memory lowerings can read, maybe a copy."""
    if tensor.is_conj():
        return tensor.resolve_conj()
    return tensor.clone() if has_overlap(tensor) else tensor


def _check(name: str, param: Tensor, tensor: Any) -> None:
    """Raise an error for an input that does not fit its parameter."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}, not a tensor or None")
    for what, (of, error) in _COMPARED.items():
        if of(tensor) != of(param):
            raise error(f"{name} has the {what} {of(tensor)}, but its parameter {of(param)}")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} is sparse: extra inputs are dense")
    if is_dtensor(type(param)) != is_dtensor(type(tensor)):
        kinds = "a DTensor", "no DTensor"
        here, there = kinds if is_dtensor(type(tensor)) else kinds[::-1]
        raise TypeError(f"{name} is {here}, but its parameter is {there}")
    if is_dtensor(type(param)) and _PLACE(param) != _PLACE(tensor):
        raise ValueError(f"{name} is not sharded as its parameter is: redistribute it first")
    if _share_memory(tensor, param):
        raise ValueError(f"{name} is in the parameter's memory, which the step changes: clone it")


def _share_memory(*tensors: Tensor) -> bool:
    """Tell whether two tensors of one shape and dtype may have an element in common."""
    (start, end), (other_start, other_end) = map(_memory, tensors)
    return start < other_end and other_start < end


def _memory(tensor: Tensor) -> tuple[int, int]:
    """Return the first and end address of the memory of a tensor, or of a DTensor's shard."""
    local = local_tensor(tensor) if is_dtensor(type(tensor)) else tensor
    if not local.numel():
        return 0, 0
    sizes = zip(local.shape, local.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in sizes)
    return local.data_ptr(), local.data_ptr() + (last + 1) * local.element_size()


def input_columns(rule: Rule, inputs: Inputs, members: Sequence[Tensor]) -> dict[str, list[Any]]:
    """Return for each input, by key, a list with the tensor of each parameter, or None.

    The list is empty if no parameter has this input.

    Raises:
        ValueError: the rule needs an input that a parameter lacks.
    """
    columns = {}
    for state in rule.inputs:
        handed = inputs.get(state.given, {})
        column = [handed.get(id(member)) for member in members]
        if state.when is None and any(tensor is None for tensor in column):
            index = next(i for i, tensor in enumerate(column) if tensor is None)
            shape = tuple(members[index].shape)
            raise ValueError(
                f"the rule needs {state.given} for each parameter with a gradient, and a parameter "
                f"of shape {shape} has none: step({state.given}=[…])"
            )
        columns[state.key] = column if any(tensor is not None for tensor in column) else []
    return columns


def given_flags(
    rule: Rule, columns: Mapping[str, list[Any]], count: int
) -> list[tuple[tuple[str, bool], ...]]:
    """Return, for each of `count` parameters, the flags that say which inputs it has."""
    asked = [(state.when, columns[state.key] or [None] * count) for state in rule.inputs]
    return [
        tuple((when, column[index] is not None) for when, column in asked if when)
        for index in range(count)
    ]
