"""Convert the tensors of one update to one dtype: torch's operations rarely take several dtypes.

A gradient may have another dtype than its parameter (`grad_dtype`), and a state may have the dtype
that its parameter had before. The update computes in a dtype that holds all of them, for example
float32 for float16 and bfloat16. Results are rounded once, when they are written back. If the rule
itself sets the dtype of a state, the generated code converts that state. If the rule rounds to its
parameter's dtype, the generated code converts all its tensors.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.eager.tensor_lists import chunks
from optgen.runtime.rule import Rule
from optgen.runtime.tensors.quantized import QuantizedTensor

_dtype = attrgetter("dtype")


def has_several_dtypes(rule: Rule, batch: Batch) -> bool:
    """Tell whether parameters, gradients, and states made in the parameters' dtype differ in dtype.

    If the rule widens, its generated code converts dtypes, but not codes of 8 bits.
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
    rule: Rule, columns: list[list[Any]], seen_param: Tensor | None = None
) -> ListsInOneDtype:
    """Return the lists of a bucket; a list of another dtype than the common one is converted.

    For shards, `seen_param` is a whole parameter in the shape that the rule sees.
    """
    if rule.widens:
        return _dequantized(columns) if rule.quantized_states else ListsInOneDtype(columns, [])
    param = columns[0][0] if seen_param is None else seen_param
    states = [state for state in rule.states if state.suits(param)]
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


def chunks_in_one_dtype(rule: Rule, columns: list[list[Any]]) -> Iterator[list[list[Any]]]:
    """Yield the lists of a bucket in one dtype, a few parameters at a time; write results back."""
    for chunk in chunks(columns):
        # Each part of a chunk is one TensorList, or nothing for an empty list.
        lists = [part[0].tensors if part else [] for part in chunk]
        converted = in_one_dtype(rule, lists)
        yield converted.columns
        converted.write_back()


def function_lists_in_one_dtype(rule: Rule, columns: list[list[Tensor]]) -> ListsInOneDtype:
    """Return the lists of a function in one dtype.

    The lists that the function writes decide the dtype. A list that the function only reads is
    rounded to that dtype if it is wider.
    """
    written = (True, False, *(state.written for state in rule.states))
    return _converted(columns, [True] * len(columns), written, deciding=written)
