"""Bring what one update computes with into one dtype: torch's operations rarely take several.

A parameter and its gradient may be of different types (`grad_dtype`), and a state of the one that
its parameter had before. They are computed with in a type that holds all of them, float32 for those
of 16 bits, and what is written is rounded once. A state of which the rule itself says the type is
the generated code's to deal with.
"""

from collections.abc import Iterator
from functools import reduce
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.eager.tensor_lists import chunks
from optgen.runtime.rule import Rule

_dtype = attrgetter("dtype")


def several(rule: Rule, batch: Batch) -> bool:
    """Tell whether some parameter of a work has a gradient or a state of another dtype."""
    known = batch.memo.get("dtype")
    if known is None:
        kept = _own(rule, batch.states)
        dtypes = set(map(_dtype, chain(batch.params, *kept)))
        known = batch.memo["dtype"] = dtypes.pop() if len(dtypes) == 1 else "several"
    return batch.grad_dtypes != {known}


def _own(rule: Rule, states: list[list[Any]]) -> Iterator[list[Any]]:
    """The states of their parameters' dtype, or of the one that these had when they were made."""
    for state, column in zip(rule.states, states, strict=True):
        if state.shape != "scalar" and state.dtype is None:
            yield [value for value in column if value is not None]


class OneDtype(NamedTuple):
    """The lists of a bucket in one dtype, and where what is written has its place."""

    columns: list[list[Any]]
    written: list[tuple[list[Tensor], list[Tensor]]]  # the lists of the bucket, and these copies

    def put_back(self) -> None:
        """Write the updated copies to what they were made of."""
        for tensors, copies in self.written:
            torch._foreach_copy_(tensors, copies)


def in_one_dtype(rule: Rule, columns: list[list[Any]]) -> OneDtype:
    """Return the lists of a bucket, copied where one has another dtype than all have in common."""
    param = columns[0][0]
    states = [state for state in rule.states if state.suits(param)]
    own = [state.shape != "scalar" and state.dtype is None for state in states]
    kept = [True, True, *own, *[False] * (len(columns) - 2 - len(own))]
    written = [True, False, *(state.written for state in states)]
    dtypes = [c[0].dtype for c, counts in zip(columns, kept, strict=True) if counts and c]
    common = reduce(torch.promote_types, dtypes)
    taken, back = list(columns), []
    for place, column in enumerate(columns):
        if kept[place] and column and column[0].dtype != common:
            taken[place] = [tensor.to(common) for tensor in column]
            if written[place]:
                back.append((column, taken[place]))
    return OneDtype(taken, back)


def chunks_in_one_dtype(rule: Rule, columns: list[list[Any]]) -> Iterator[list[list[Any]]]:
    """Yield the lists of a bucket in one dtype, a few parameters at a time; then write back."""
    for chunk in chunks(columns):
        lists = [part[0].tensors if part else [] for part in chunk]
        alike = in_one_dtype(rule, lists)
        yield alike.columns
        alike.put_back()


def reads_in_dtype_of_first(rule: Rule, columns: list[list[Tensor]]) -> Iterator[list[Tensor]]:
    """Yield the lists of a function; what is only read comes in the dtype of the first list."""
    written = (True, False, *(state.written for state in rule.states))
    for column, is_written in zip(columns, written, strict=True):
        pairs = zip(column, columns[0], strict=True)
        yield column if is_written else [tensor.to(first.dtype) for tensor, first in pairs]
