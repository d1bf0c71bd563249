"""Refuse what no lowering can take, before any of them writes anything."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter, eq

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.hyperparameters import numbers_of
from optgen.runtime.protocols import Optimized
from optgen.runtime.rule import Rule
from optgen.runtime.tensors.dtensor import any_dtensor, check_state_sharding
from optgen.runtime.torch_private import has_overlap, item, numel

_shape, _dtype = attrgetter("shape"), attrgetter("dtype")
_device, _is_cpu = attrgetter("device"), attrgetter("is_cpu")
_SUPPORTED = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def check_step(optimizer: Optimized, batch: Batch) -> None:
    """Raise an error for what may be wrong in a step that was right in the one before."""
    if not batch.params:
        return
    numbers_of(optimizer).check(optimizer.rule.values(batch.group))
    _check_gradients(batch)
    _check_memory(batch)
    _check_states(optimizer.rule, batch)
    if not batch.group.get("capturable"):  # a graph holds no look at a number
        _check_counts(batch.steps)


def check_types(rule: Rule, batch: Batch) -> None:
    """Raise an error for tensors that do not go together; it holds for others of their types."""
    if any_dtensor(batch.members):
        _check_state_sharding(rule, batch)
    _check_numbers(rule, batch)
    _check_devices(rule, batch)
    for key, column in _named_columns(rule, batch):
        strange = set(map(_dtype, _present(column))) - _SUPPORTED
        for dtype in strange:
            raise NotImplementedError(f"{key} is of {dtype}: steps compute with real numbers")
    _check_shapes(rule, batch)


def _named_columns(rule: Rule, batch: Batch) -> Iterator[tuple[str, Sequence[Tensor]]]:
    """The parameters and the states that have a shape, by their names."""
    yield "a parameter", batch.params
    for state, column in zip(rule.states, batch.states, strict=True):
        if state.shape != "scalar":
            yield state.key, column


def _check_gradients(batch: Batch) -> None:
    """Raise an error for a gradient that is unlike its parameter, as `.data` and `resize_` leave
    it: in memory there may be other numbers in its place, or nothing.
    """
    params, grads = batch.params, batch.grads
    if not _have_shapes(batch.shapes if batch.real else map(_shape, params), grads):
        for param, grad in zip(params, grads, strict=True):
            _check_shape(param, grad)
    if not all(map(_is_cpu, grads)) and list(map(_device, grads)) != list(map(_device, params)):
        pairs = zip(map(_device, params), map(_device, grads), strict=True)
        one, other = next(pair for pair in pairs if pair[0] != pair[1])
        raise RuntimeError(f"a gradient is on {other}, but its parameter on {one}")
    for dtype in {dtype.to_real() for dtype in batch.grad_dtypes} - _SUPPORTED:
        raise NotImplementedError(f"a gradient is of {dtype}: steps compute with real numbers")


def _have_shapes(shapes: Iterable[torch.Size], tensors: Iterable[Tensor]) -> bool:
    """Tell whether tensors have these shapes; thousands at once would wake the collector."""
    return all(map(eq, map(_shape, tensors), shapes))


def _check_shape(param: Tensor, grad: Tensor) -> None:
    pair = (2,) if grad.is_complex() else ()  # a sparse one: dense ones are seen as reals
    if param.shape != (*grad.shape, *pair):
        raise RuntimeError(
            f"a gradient has the shape {tuple(grad.shape)}, but its parameter {tuple(param.shape)}"
        )


def _check_memory(batch: Batch) -> None:
    """Raise torch's error for what is to be written where several elements share a place."""
    for index in batch.noncontiguous:
        for column in (batch.params, *batch.states):
            if column and column[index] is not None and has_overlap(column[index]):
                raise RuntimeError(
                    "unsupported operation: more than one element of the written-to tensor refers "
                    "to a single memory location. Please clone() the tensor before performing the "
                    "operation."
                )


def _check_counts(steps: Sequence[Tensor]) -> None:
    """Raise an error for a count below zero, but on a device, which would have to be waited for."""
    if steps and steps[0].is_cpu and min(map(item, steps)) < 0:
        raise ValueError(f"a step is {min(map(item, steps)):g}: steps are counted from 0")


def _check_shapes(rule: Rule, batch: Batch) -> None:
    """A kernel would write beyond a state that is smaller than its parameter."""
    for state, column in zip(rule.states, batch.states, strict=True):
        as_always = state.shape == "like" and not rule.facts
        if as_always and list(map(_shape, column)) == list(map(_shape, batch.params)):
            continue
        for param, values in zip(batch.params, column, strict=False):
            if state.shape == "scalar" or values is None:
                continue
            if list(values.shape) != state.shape_for(param):
                raise RuntimeError(
                    f"{state.key} has the shape {tuple(values.shape)}, but its parameter "
                    f"{tuple(param.shape)}: a state belongs to a parameter of one shape"
                )


def _check_states(rule: Rule, batch: Batch) -> None:
    """A state may have got another shape of as many elements; of the rest its type tells."""
    if rule.facts or not batch.real:
        return
    for state, column in zip(rule.states, batch.states, strict=True):
        if state.shape == "like" and column and not _have_shapes(batch.shapes, column):
            _check_shapes(rule, batch)


def _check_numbers(rule: Rule, batch: Batch) -> None:
    """A step count or a scalar state that is not one number is torch's error, before it is read."""
    states = zip(rule.states, batch.states, strict=True)
    columns = [batch.steps, *(column for state, column in states if state.shape == "scalar")]
    for elements in {numel(number) for column in columns for number in column} - {1}:
        raise RuntimeError(f"a Tensor with {elements} elements cannot be converted to Scalar")


def _check_devices(rule: Rule, batch: Batch) -> None:
    """Raise an error for a state that is not where its parameter is; single numbers may be on the
    CPU.
    """
    if all(map(_is_cpu, chain(batch.params, batch.steps, *map(_present, batch.states)))):
        return  # gradients are looked at in every step
    if list(map(_device, batch.grads)) != list(map(_device, batch.params)):
        raise RuntimeError("a gradient is on another device than its parameter")
    scalar = [state.shape == "scalar" for state in rule.states]
    names = ["step", *(state.key for state in rule.states)]
    columns = zip(names, [True, *scalar], [batch.steps, *batch.states], strict=True)
    for key, is_scalar, column in columns:
        for param, value in zip(batch.params, column, strict=False):
            if value is None or value.device == param.device or (is_scalar and value.is_cpu):
                continue
            raise RuntimeError(
                f"{key} is on {value.device}, but its parameter on {param.device}: bring it there, "
                "or clear the optimizer's state for the parameter"
            )


def _present(column: Sequence[Tensor | None]) -> Iterator[Tensor]:
    return (value for value in column if value is not None)


def _check_state_sharding(rule: Rule, batch: Batch) -> None:
    """A state that another process has the rest of is none of this process's part."""
    for state in rule.states:
        if state.shape == "like" and state.present(batch.group):
            for param, values in zip(batch.members, batch.dicts, strict=True):
                if state.suits(param):
                    check_state_sharding(state.key, param, values[state.key])
