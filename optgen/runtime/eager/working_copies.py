"""Compute with copies of tensors in one dtype, and write them back.

torch's operations rarely take several dtypes. A gradient may have another dtype than its parameter
(`grad_dtype`), and a state may have the dtype that its parameter had before. The update computes in
a dtype that holds all of them, for example float32 for float16 and bfloat16 (`in_one_dtype`).
Results are rounded once, when they are written back. If the rule itself sets the dtype of a state,
the generated code converts that state.

A rule that rounds its results itself must compute more precisely than it stores, or nothing is left
to round. Its generated code computes with `WideCopies` of its tensors.

A rule on whole matrices is computed statement by statement, and not in place. It computes in
float64 for a float64 parameter, in float32 for any other (`copy_in_compute_dtype`), and writes the
parameter and its states at its end. So an update in for-loop or foreach that fails has written none
of its tensors. A fused update may have written some of them before it fails.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from optgen.contract.states import Shape
from optgen.runtime.batch.batch import Batch
from optgen.runtime.eager.parts import whole_chunks
from optgen.runtime.eager.tensor_lists import TensorList
from optgen.runtime.rule import Rule, State, compute_dtype
from optgen.runtime.tensors.quantized import QuantizedTensor
from optgen.runtime.torch_private import foreach_clone

_dtype = attrgetter("dtype")


def has_several_dtypes(rule: Rule, batch: Batch) -> bool:
    """Tell whether parameters, gradients, and states made in the parameters' dtype differ in dtype.

    If the rule widens, its generated code converts dtypes, but not codes.
    """
    if rule.widens:
        return batch.has_codes
    dtype = batch.memo.get("dtype")  # the only dtype of parameters and states, or "several"
    if dtype is None:
        states = _states_in_param_dtype(rule, batch.states)
        dtypes = set(map(_dtype, chain(batch.params, *states)))
        dtype = batch.memo["dtype"] = dtypes.pop() if len(dtypes) == 1 else "several"
    return batch.grad_dtypes != {dtype}


def _states_in_param_dtype(rule: Rule, states: list[list[Any]]) -> Iterator[list[Any]]:
    """Yield the states that were created in the dtype of their parameters."""
    for state, column in zip(rule.states, states, strict=True):
        if state.shape != "scalar" and state.dtype is None:
            yield [value for value in column if value is not None]


class ListsInOneDtype(NamedTuple):
    """The lists of a bucket in one dtype, and the copies that must be written back."""

    columns: list[list[Any]]
    to_write: list[tuple[list[Tensor], list[Tensor]]]  # a list of the bucket, and its copies

    def write_back(self) -> None:
        """Write the updated copies back to the original tensors."""
        for tensors, copies in self.to_write:
            if isinstance(tensors[0], QuantizedTensor):
                for tensor, numbers in zip(tensors, copies, strict=True):
                    tensor.quantize_(numbers)  # type: ignore[attr-defined]
            else:
                torch._foreach_copy_(tensors, copies)


def in_one_dtype(
    rule: Rule,
    columns: list[list[Any]],
    group: Mapping[str, Any],
    seen_param: Tensor | None = None,
) -> ListsInOneDtype:
    """Return the lists of a bucket; a list of another dtype than the common one is converted.

    `group` has the values of hyperparameters. For shards, `seen_param` is a whole parameter in the
    shape that the rule sees.
    """
    if rule.widens:
        return _dequantized(columns) if rule.quantized_states else ListsInOneDtype(columns, [])
    param = columns[0][0] if seen_param is None else seen_param
    states = [state for state in rule.states if state.suits(param, group)]
    in_param_dtype = [state.shape != "scalar" and state.dtype is None for state in states]
    num_step_count_lists = len(columns) - 2 - len(in_param_dtype)  # 0 or 1
    # Step counts keep their dtype.
    follows_param = [True, True, *in_param_dtype, *[False] * num_step_count_lists]
    written = [True, False, *(state.written for state in states)]
    return _converted(columns, follows_param, written, deciding=follows_param)


def _converted(
    columns: list[list[Any]],
    convertible: Sequence[bool],
    written: Sequence[bool],
    deciding: Sequence[bool],
) -> ListsInOneDtype:
    """Return lists in one dtype, the narrowest that holds the numbers of the `deciding` lists.

    Args:
        columns: The lists.
        convertible: For each list, whether it may be converted.
        written: For each list, whether its converted copies must be written back.
        deciding: For each list, whether the common dtype must hold its numbers.
    """
    pairs = zip(columns, deciding, strict=True)
    dtypes = [column[0].dtype for column, decides in pairs if decides and column]
    common_dtype = reduce(torch.promote_types, dtypes)
    converted, to_write = list(columns), []
    for index, column in enumerate(columns):
        if convertible[index] and column and column[0].dtype != common_dtype:
            converted[index] = [tensor.to(common_dtype) for tensor in column]
            if written[index]:
                to_write.append((column, converted[index]))
    return ListsInOneDtype(converted, to_write)


def _dequantized(columns: list[list[Any]]) -> ListsInOneDtype:
    """Return the lists of a bucket; quantized states are replaced by their numbers."""
    converted, to_write = list(columns), []
    for index, column in enumerate(columns):
        if column and isinstance(column[0], QuantizedTensor):
            converted[index] = [tensor.dequantize() for tensor in column]
            to_write.append((column, converted[index]))
    return ListsInOneDtype(converted, to_write)


def chunks_in_one_dtype(
    rule: Rule, columns: list[list[Any]], group: Mapping[str, Any]
) -> Iterator[list[list[Any]]]:
    """Yield the lists of a bucket in one dtype, a few parameters at a time; write results back."""
    for chunk in whole_chunks(columns):
        # Each part of a chunk is one TensorList, or nothing for an empty list.
        lists = [part[0].tensors if part else [] for part in chunk]
        converted = in_one_dtype(rule, lists, group)
        yield converted.columns
        converted.write_back()


def function_lists_in_one_dtype(rule: Rule, columns: list[list[Tensor]]) -> ListsInOneDtype:
    """Return the lists of a function in one dtype.

    The lists that the function writes decide the dtype. A list that the function only reads is
    rounded to that dtype if it is wider.
    """
    written = (True, False, *(state.written for state in rule.states))
    return _converted(columns, [True] * len(columns), written, deciding=written)


class WideCopies:
    """Tensors of one parameter, or lists of tensors, in one dtype: float32 or wider.

    None and [] stand for absent states. A tensor that has the dtype already is not copied.

    Args:
        tensors: The parameter comes first. The dtype holds the numbers of all of them.
        read_only: Positions of the tensors that the caller does not change. In most rules, the
            second one is the gradient, and all others are changed.
    """

    def __init__(self, *tensors: Any, read_only: Sequence[int] = (1,)) -> None:
        dtype = _common_dtype(tensors)
        self.tensors = [_in_dtype(dtype, tensor) for tensor in tensors]
        pairs = zip(tensors, self.tensors, strict=True)
        self._changed = [pair for n, pair in enumerate(pairs) if n not in read_only]

    def write_back(self) -> None:
        """Write the copies into the tensors that they were made of."""
        for tensor, copy in self._changed:
            if copy is not tensor:
                _write(tensor, copy)


def widened(parts: Iterable[Sequence[Any]], read_only: Sequence[int] = (1,)) -> Iterator[list[Any]]:
    """Yield the `WideCopies` of parts of tensors; write each part back before the next one."""
    for part in parts:
        copies = WideCopies(*part, read_only=read_only)
        yield copies.tensors
        copies.write_back()


def wider(x: Any, like: Any = None) -> Any:
    """Return a copy of a tensor in the widest of float32, its own dtype and that of `like`."""
    if isinstance(x, TensorList):
        params = x.tensors if like is None else like.tensors
        pairs = zip(x.tensors, params, strict=True)
        return TensorList([wider(tensor, like=param) for tensor, param in pairs])
    dtypes = [x.dtype] if like is None else [x.dtype, like.dtype]
    return x.to(reduce(torch.promote_types, dtypes, torch.float32), copy=True)


def _common_dtype(values: Sequence[Any]) -> torch.dtype:
    tensors = [value[0] if isinstance(value, list) else value for value in values if _exists(value)]
    return reduce(torch.promote_types, map(_dtype, tensors), torch.float32)


def _exists(value: Any) -> bool:
    return value is not None and not (isinstance(value, list) and not value)


def _in_dtype(dtype: torch.dtype, value: Any) -> Any:
    """Return a tensor or a list of tensors in a dtype; itself if it has that dtype already."""
    if not _exists(value):
        return value
    if isinstance(value, list):
        return value if value[0].dtype == dtype else [tensor.to(dtype) for tensor in value]
    return value.to(dtype)


def _write(value: Any, computed: Any) -> None:
    if isinstance(value, list):
        torch._foreach_copy_(value, computed)
    else:
        value.copy_(computed)


def copy_in_compute_dtype(value: Tensor | list[Tensor], like: Tensor | list[Tensor]) -> Tensor:
    """Return a copy in the dtype of the computation for a parameter like this one.

    The copy of a list is a `TensorList`, which generated code computes with as with a tensor.
    """
    dtype = _dtype_of_computation(like)
    if isinstance(value, Tensor):
        return value.to(dtype, copy=True)
    have_dtype = all(tensor.dtype == dtype for tensor in value)
    copies = foreach_clone(value) if have_dtype else [tensor.to(dtype) for tensor in value]
    return cast(Tensor, TensorList(copies))


def in_compute_dtype(value: Tensor | list[Tensor], like: Tensor | list[Tensor]) -> Tensor:
    """Return a tensor or list in the dtype of the computation; the caller must not change it."""
    dtype = _dtype_of_computation(like)
    if isinstance(value, Tensor):
        return value.to(dtype)
    return cast(Tensor, TensorList([tensor.to(dtype) for tensor in value]))


def number_in_float64(value: Tensor | list[Tensor]) -> Tensor:
    """Return copies of 0-dim states in float64, in which a rule computes with its numbers."""
    if isinstance(value, Tensor):
        return value.to(torch.float64, copy=True)
    return cast(Tensor, TensorList([each.to(torch.float64, copy=True) for each in value]))


def write_back(tensors: list[Tensor], values: Tensor) -> None:
    """Write the values of a `TensorList` into the tensors of a bucket, in their dtype.

    Nothing is copied if the values are these tensors themselves.
    """
    results = cast(TensorList, values).tensors
    if any(tensor is not result for tensor, result in zip(tensors, results, strict=True)):
        torch._foreach_copy_(tensors, results)


def empty_like(values: Tensor, shape: Shape) -> Tensor:
    """Return a `TensorList` of new tensors, which a sweep is to fill.

    The shape is that of a state. A number is in float64, as those are that the rule stores; it has
    no axes, so that it changes the dtype of no tensor.
    """
    tensors = cast(TensorList, values).tensors
    if shape == "like":
        return cast(Tensor, TensorList(list(map(torch.empty_like, tensors))))
    if shape == "scalar":
        created = [x.new_empty((), dtype=torch.float64) for x in tensors]
    else:
        state = State("", shape=shape)
        created = [x.new_empty(state.shape_for(x)) for x in tensors]
    return cast(Tensor, TensorList(created))


def in_rows(numbers: Tensor, like: Tensor) -> Tensor:
    """Return a `TensorList` with a number of each matrix, repeated for each row of `like`."""
    pairs = zip(cast(TensorList, numbers).tensors, cast(TensorList, like).tensors, strict=True)
    return cast(Tensor, TensorList([_in_rows(n, x) for n, x in pairs]))


def _in_rows(number: Tensor, like: Tensor) -> Tensor:
    return number.to(like.dtype).expand(*like.shape[:-1], 1).contiguous()


def write_number(state: Tensor | list[Tensor], value: float | Tensor | TensorList) -> None:
    """Write a number, or a tensor of one element, into a 0-dim state, or into each of a list."""
    if isinstance(state, list):
        values = value.tensors if isinstance(value, TensorList) else [value] * len(state)
        for each, each_value in zip(state, values, strict=True):
            _write_one(each, each_value)
    else:
        _write_one(state, value)


def _write_one(state: Tensor, value: Any) -> None:
    if isinstance(value, Tensor):
        state.copy_(value.reshape(()))
    else:
        state.fill_(value)


def _dtype_of_computation(like: Tensor | list[Tensor]) -> torch.dtype:
    return compute_dtype((like if isinstance(like, Tensor) else like[0]).dtype)
