"""What one call of a kernel takes: all that it can walk where it lies, then copies of the rest.

A kernel goes over all streams of a parameter as flat memory. Where they lie in different orders, as
gradients of another memory format than their parameter's, or with holes, it is given copies: of a
few tensors at a time, so that the peak of memory is theirs and not that of all.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.fused_cpu.fill_table import check
from optgen.runtime.fused_cpu.kernel import Kernel
from optgen.runtime.tensors import layout
from optgen.runtime.torch_private import is_contiguous, is_neg

# As many elements are copied at once, or one tensor: where a second thread begins to help.
_ELEMENTS = 1 << 20


class Chunk(NamedTuple):
    """Works for one call."""

    batches: Sequence[Batch]
    copies: bool = False  # whether the kernel needs copies of their tensors


def chunks(kernel: Kernel, batches: Sequence[Batch]) -> Iterator[Chunk]:
    """Split the works of a step."""
    lying: list[Batch] = []
    crooked: list[Batch] = []
    for batch in batches:
        places = _crooked(kernel, batch)
        if not places:
            lying.append(batch)
        elif kernel.calls:  # matrices of one shape are best taken together
            crooked.append(batch)
        else:
            if others := sorted(set(range(len(batch.params))) - set(places)):
                lying.append(batch.subset(others))
            crooked += map(batch.subset, _few(batch, places))
    if lying:
        yield Chunk(lying)
    for batch in crooked:
        yield Chunk([batch], copies=True)


def together(kernel: Kernel, batches: Sequence[Batch]) -> Chunk:
    """All works for one call, which other processes take part in."""
    return Chunk(batches, copies=any(_crooked(kernel, batch) for batch in batches))


def _crooked(kernel: Kernel, batch: Batch) -> list[int]:
    """The places of the parameters of which some stream must be copied."""
    columns = _walked(kernel, batch)
    flat = not batch.noncontiguous and all(map(is_contiguous, batch.grads))
    if flat and not any(any(map(is_neg, column)) for column in columns):
        return []
    return [
        place
        for place, row in enumerate(zip(*columns, strict=True))
        if layout.streams_to_copy(row, kernel.by_matrix)
    ]


def _walked(kernel: Kernel, batch: Batch) -> list[list[Tensor]]:
    """The lists of tensors that a kernel walks side by side."""
    states = zip(kernel.rule.states, batch.states, strict=True)
    return [batch.params, batch.grads, *(c for s, c in states if c and s.shape != "scalar")]


def check_copies(kernel: Kernel, batches: Sequence[Batch]) -> None:
    """Raise the errors about works of which copies are to be made: by then others are updated."""
    for batch in batches:
        check(kernel, batch)


def _few(batch: Batch, places: list[int]) -> Iterator[list[int]]:
    few, elements = list[int](), 0
    for place in places:
        size = batch.params[place].numel()
        if few and elements + size > _ELEMENTS:
            yield few
            few, elements = [], 0
        few.append(place)
        elements += size
    yield few
