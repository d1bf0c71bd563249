"""Check a batch: raise for tensors that no lowering can take, before anything is written."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter, eq

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.grad_scaler import must_unscale
from optgen.runtime.batch.hyperparameters import converter_of
from optgen.runtime.rule import OptimizerLike, Rule, State
from optgen.runtime.tensors.dtensor import any_dtensor, check_state_sharding
from optgen.runtime.tensors.layout import all_fit_storage, fits_storage
from optgen.runtime.tensors.quantized import QuantizedTensor
from optgen.runtime.tensors.sharding import check_matrix_sharding, local_matrix_shape
from optgen.runtime.torch_private import (
    has_overlap,
    is_contiguous,
    is_functorch_wrapped,
    is_inference,
    is_plain_class,
    item,
    numel,
)

_shape, _dtype = attrgetter("shape"), attrgetter("dtype")
_device, _is_cpu = attrgetter("device"), attrgetter("is_cpu")
_VIEW_HINT = (
    ", as its group's view shows it; give the group the view that the state was made with, or "
    "clear the optimizer's state for the parameter"
)
_RANK_HINT = (
    "; a rank holds from the first step on: give the group the rank that the state was made with, "
    "or clear the optimizer's state for the parameter"
)
_SUPPORTED_DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_SUPPORTED_TEXT = "a step takes float16, bfloat16, float32 and float64"


def check_step(optimizer: OptimizerLike, batch: Batch) -> None:
    """Check hyperparameters, shapes, memory and step counts, which no signature has."""
    if not batch.params:
        return
    converter_of(optimizer).check(optimizer.rule.hyper_values(batch.group))
    _check_gradients(batch)
    writes_gradients = must_unscale(optimizer) or optimizer.rule.zero_grad
    states = zip(optimizer.rule.states, batch.states, strict=True)
    check_storages(
        {
            "a parameter": batch.params,
            "a gradient": batch.grads,
            "a step": batch.step_counts,
            **{state.key: _present(column) for state, column in states},
        }
    )
    _check_inference_tensors(optimizer.rule, batch, writes_gradients)
    _check_memory(batch, writes_gradients)
    _check_reshaped_states(optimizer.rule, batch)
    if not batch.needs_no_views:  # `needs_no_views` excludes quantized tensors
        _check_codes(optimizer.rule, batch)
    if not batch.group.get("capturable"):  # a captured graph cannot read a number
        _check_step_counts(batch.step_counts)


def check_signature(rule: Rule, batch: Batch) -> None:
    """Raise an error for tensors that do not fit together.

    The result depends on the signature only, so it holds for all batches of one signature.
    """
    if any_dtensor(batch.members):
        _check_state_sharding(rule, batch)
    _check_scalars(rule, batch)
    _check_devices(rule, batch)
    for name, column in _named_columns(rule, batch):
        plain_tensors = (value for value in _present(column) if type(value) is not QuantizedTensor)
        unsupported = set(map(_dtype, plain_tensors)) - _SUPPORTED_DTYPES
        for dtype in unsupported:
            raise NotImplementedError(f"{name} is of {dtype}: {_SUPPORTED_TEXT}")
    _check_state_shapes(rule, batch)


def _named_columns(rule: Rule, batch: Batch) -> Iterator[tuple[str, Sequence[Tensor]]]:
    """Yield the parameters and the states that are no scalars, with their names for messages."""
    yield "a parameter", batch.params
    for state, column in zip(rule.states, batch.states, strict=True):
        if state.shape != "scalar":
            yield state.key, column


def _check_gradients(batch: Batch) -> None:
    """Raise an error for a gradient that does not fit its parameter, or has no supported dtype.

    `.data` and `resize_` can change a gradient's shape; a kernel would read beyond its memory.
    """
    params, grads = batch.params, batch.grads
    shapes = batch.shapes if batch.needs_no_views else map(_shape, params)
    has_complex = any(dtype.is_complex for dtype in batch.grad_dtypes)  # sparse ones: see below
    if has_complex or not _have_shapes(shapes, grads):
        for param, grad in zip(params, grads, strict=True):
            _check_shape(param, grad)
    if not all(map(_is_cpu, grads)) and list(map(_device, grads)) != list(map(_device, params)):
        pairs = zip(map(_device, params), map(_device, grads), strict=True)
        param_device, device = next(pair for pair in pairs if pair[0] != pair[1])
        raise RuntimeError(f"a gradient is on {device}, but its parameter on {param_device}")
    for dtype in {dtype.to_real() for dtype in batch.grad_dtypes} - _SUPPORTED_DTYPES:
        raise NotImplementedError(f"a gradient is of {dtype}: {_SUPPORTED_TEXT}")


def _have_shapes(shapes: Iterable[torch.Size], tensors: Iterable[Tensor]) -> bool:
    """Tell whether tensors have these shapes; make no lists: long ones start garbage collection."""
    return all(map(eq, map(_shape, tensors), shapes))


def _check_shape(param: Tensor, grad: Tensor) -> None:
    """Raise an error for a gradient whose shape is not that of its parameter."""
    # Only a sparse gradient is still complex here. Its parameter is viewed as real, with pairs.
    dim_of_pairs = (2,) if grad.is_complex() else ()
    if grad.is_complex() and param.shape == grad.shape:
        raise RuntimeError("a gradient is complex, but its parameter is real")
    if param.shape != (*grad.shape, *dim_of_pairs):
        raise RuntimeError(
            f"a gradient has the shape {tuple(grad.shape)}, but its parameter {tuple(param.shape)}"
        )


def _check_inference_tensors(rule: Rule, batch: Batch, writes_gradients: bool) -> None:
    """Raise an error for a tensor that the step writes if it was made in inference mode.

    Like torch, a step may write to such a tensor in inference mode only.
    """
    if torch.is_inference_mode_enabled():
        return
    states = zip(rule.states, batch.states, strict=True)
    columns = [
        ("a parameter", batch.params),
        ("a step", batch.step_counts),
        ("a gradient", batch.grads if writes_gradients else ()),
        *((state.key, _present(column)) for state, column in states if state.written),
    ]
    for name, column in columns:
        if any(map(is_inference, column)):
            raise RuntimeError(
                f"the step writes to {name}, which was made in inference mode: clone it outside of "
                "inference mode"
            )


def check_storages(columns: Mapping[str, Iterable[Tensor]]) -> None:
    """Raise an error for a tensor on the CPU that is larger than its storage; keys are names.

    `resize_` of a storage can shrink it. A kernel would read and write beyond it, and so would
    torch's own operations.
    """
    for name, column in columns.items():
        tensors = [each for each in column if each.is_cpu and _has_memory(each)]
        if all_fit_storage(tensors):
            continue
        tensor = next(each for each in tensors if not fits_storage(each))
        raise RuntimeError(
            f"{name} has the shape {tuple(tensor.shape)} and the dtype {tensor.dtype}, but its "
            f"storage has only {tensor.untyped_storage().nbytes()} bytes: give the storage its "
            "size again, or the tensor other memory"
        )


def _has_memory(tensor: Tensor) -> bool:
    """Tell whether a tensor is memory: no sparse tensor, and no wrapper such as torch.func's."""
    is_memory = is_plain_class(type(tensor)) or type(tensor) is QuantizedTensor
    return is_memory and tensor.layout is torch.strided and not is_functorch_wrapped(tensor)


def _check_memory(batch: Batch, writes_gradients: bool) -> None:
    """Raise torch's error for a tensor that the step writes if its elements share memory."""
    written_tensors = [
        each.original for each in batch.view_copies if writes_gradients or not each.is_gradient
    ]
    for index in batch.noncontiguous_indices:
        columns = (column for column in (batch.params, *batch.states) if column)
        written_tensors += (column[index] for column in columns if column[index] is not None)
    if writes_gradients:
        dense = (grad for grad in batch.grads if not grad.is_sparse)
        written_tensors += (grad for grad in dense if not is_contiguous(grad))
    if any(map(has_overlap, written_tensors)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers "
            "to a single memory location. Please clone() the tensor before performing the "
            "operation."
        )


def _check_step_counts(counts: Sequence[Tensor]) -> None:
    """Raise an error for a step count below zero.

    Counts on a device are not read: to read them, the host would wait for the device.
    """
    if counts and counts[0].is_cpu and (least := min(map(item, counts))) < 0:
        raise ValueError(f"a step is {least:g}: steps are counted from 0")


def _check_state_shapes(rule: Rule, batch: Batch) -> None:
    """Raise an error for a state whose shape does not fit its parameter.

    A kernel would write beyond a state that is smaller than its parameter.
    """
    for state, column in zip(rule.states, batch.states, strict=True):
        if state.step_argument:
            continue  # `checked_inputs` has checked the shapes of extra inputs
        every_param_has_it = state.shape == "like" and not rule.facts
        if every_param_has_it and list(map(_shape, column)) == list(map(_shape, batch.params)):
            continue
        for index, tensor in enumerate(column):
            if state.shape == "scalar" or tensor is None:
                continue
            param, rank = batch.params[index], rule.rank(batch.group)
            if isinstance(state.shape, str):
                expected_shape = state.shape_for(param)
            else:
                param = batch.seen_params[
                    index
                ]  # the whole parameter decides the size of a matrix state
                whole_shape = state.shape_for(param, rank)
                expected_shape = local_matrix_shape(batch.members[index], state, whole_shape)
            if list(tensor.shape) != expected_shape:
                raise _shape_error(
                    state, tensor, param, expected_shape, rank, has_view=bool(batch.meta_views)
                )


def _shape_error(
    state: State,
    tensor: Tensor,
    param: Tensor,
    expected_shape: list[int],
    rank: int,
    has_view: bool,
) -> RuntimeError:
    """Return the error about a state whose shape does not fit its parameter."""
    actual, shape = tuple(tensor.shape), tuple(param.shape)
    if state.is_ranked:
        return RuntimeError(
            f"{state.key} has the shape {actual}, but rank={rank} and the shape {shape} of its "
            f"parameter ask for {tuple(expected_shape)}" + (_VIEW_HINT if has_view else _RANK_HINT)
        )
    return RuntimeError(
        f"{state.key} has the shape {actual}, but its parameter {shape}: a state belongs to a "
        "parameter of one shape" + (_VIEW_HINT if has_view else "")
    )


def _check_reshaped_states(rule: Rule, batch: Batch) -> None:
    """Raise an error for a state that was reshaped after `check_signature`.

    If the number of elements has changed too, the signature differs, and `check_signature` has run
    again.
    """
    if rule.facts or not batch.needs_no_views:
        return
    for state, column in zip(rule.states, batch.states, strict=True):
        is_elementwise = state.shape == "like" and column and not state.step_argument
        if is_elementwise and not _have_shapes(batch.shapes, column):
            _check_state_shapes(rule, batch)


def _check_codes(rule: Rule, batch: Batch) -> None:
    """Raise an error for quantized states that the rule does not declare, or that need autograd."""
    for state, column in zip(rule.states, batch.states, strict=True):
        for value in column:
            if not isinstance(value, QuantizedTensor):
                continue
            if not state.is_quantized or (value.block, value.map) != (state.block, state.map):
                raise RuntimeError(
                    f"{state.key} has codes in blocks of {value.block}, map "
                    f"{value.map!r}, which this optimizer does not declare: load a checkpoint, "
                    "which holds float32"
                )
            if batch.group.get("differentiable"):
                raise RuntimeError(
                    f"{state.key} has codes, which autograd cannot follow: set "
                    "differentiable=False, or min_elements to more than the parameters have"
                )


def _check_scalars(rule: Rule, batch: Batch) -> None:
    """Raise torch's error for a step count or a scalar state that is not one number."""
    states = zip(rule.states, batch.states, strict=True)
    columns = [batch.step_counts, *(column for state, column in states if state.shape == "scalar")]
    for elements in {numel(number) for column in columns for number in column} - {1}:
        raise RuntimeError(f"a Tensor with {elements} elements cannot be converted to Scalar")


def _check_devices(rule: Rule, batch: Batch) -> None:
    """Raise an error for a tensor on another device than its parameter.

    Step counts may be on the CPU, and so may scalar states that the host computes.
    """
    if all(map(_is_cpu, chain(batch.params, batch.step_counts, *map(_present, batch.states)))):
        return  # `check_step` checks the devices of gradients
    if list(map(_device, batch.grads)) != list(map(_device, batch.params)):
        raise RuntimeError("a gradient is on another device than its parameter")
    are_host_scalars = [state.is_host_scalar for state in rule.states]
    keys = ["step", *(state.key for state in rule.states)]
    columns = zip(keys, [True, *are_host_scalars], [batch.step_counts, *batch.states], strict=True)
    for key, is_scalar, column in columns:
        for param, value in zip(batch.params, column, strict=False):
            if value is None or value.device == param.device or (is_scalar and value.is_cpu):
                continue
            raise RuntimeError(
                f"{key} is on {value.device}, but its parameter on {param.device}: move {key} to "
                "that device, or clear the optimizer's state for the parameter"
            )


def _present(column: Sequence[Tensor | None]) -> Iterator[Tensor]:
    return (value for value in column if value is not None)


def _check_state_sharding(rule: Rule, batch: Batch) -> None:
    """Raise an error for a state that is not sharded as its parameter is."""
    for state in rule.states:
        is_matrix = not isinstance(state.shape, str)
        if not (is_matrix or state.shape == "like") or state.step_argument:
            continue
        if state.is_present(batch.group):
            for param, seen, values in zip(
                batch.members, batch.seen_params, batch.dicts, strict=True
            ):
                if not state.suits(seen, batch.group):
                    continue
                if is_matrix:
                    check_matrix_sharding(param, state, seen.dim(), values[state.key])
                else:
                    check_state_sharding(state.key, param, values[state.key])
