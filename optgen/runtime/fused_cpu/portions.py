"""What one call of a kernel takes: all that it can walk where it lies, then copies of the rest.

A kernel goes over all streams of a parameter as flat memory. Where they lie in different orders, as
gradients of another memory format than their parameter's, or with holes, it is given copies: of a
few tensors at a time, so that the peak of memory is theirs and not that of all.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from optgen.runtime import layout
from optgen.runtime.fused_cpu.kernel import Kernel
from optgen.runtime.fused_cpu.table import check
from optgen.runtime.private import is_contiguous, is_neg
from optgen.runtime.work import Work

# As many elements are copied at once, or one tensor: where a second thread begins to help.
_ELEMENTS = 1 << 20


class Portion(NamedTuple):
    """Works for one call."""

    works: Sequence[Work]
    copies: bool = False  # whether the kernel needs copies of their tensors


def portions(kernel: Kernel, works: Sequence[Work]) -> Iterator[Portion]:
    """Split the works of a step."""
    lying: list[Work] = []
    crooked: list[Work] = []
    for work in works:
        places = _crooked(kernel, work)
        if not places:
            lying.append(work)
        elif kernel.calls:  # matrices of one shape are best taken together
            crooked.append(work)
        else:
            if others := sorted(set(range(len(work.params))) - set(places)):
                lying.append(work.some(others))
            crooked += map(work.some, _few(work, places))
    if lying:
        yield Portion(lying)
    for work in crooked:
        yield Portion([work], copies=True)


def together(kernel: Kernel, works: Sequence[Work]) -> Portion:
    """All works for one call, which other processes take part in."""
    return Portion(works, copies=any(_crooked(kernel, work) for work in works))


def _crooked(kernel: Kernel, work: Work) -> list[int]:
    """The places of the parameters of which some stream must be copied."""
    columns = _walked(kernel, work)
    flat = not work.uneven and all(map(is_contiguous, work.grads))
    if flat and not any(any(map(is_neg, column)) for column in columns):
        return []
    return [
        place
        for place, row in enumerate(zip(*columns, strict=True))
        if layout.copies(row, kernel.by_matrix)
    ]


def _walked(kernel: Kernel, work: Work) -> list[list[Tensor]]:
    """The lists of tensors that a kernel walks side by side."""
    states = zip(kernel.rule.states, work.states, strict=True)
    return [work.params, work.grads, *(c for s, c in states if c and s.shape != "scalar")]


def check_copies(kernel: Kernel, works: Sequence[Work]) -> None:
    """Raise the errors about works of which copies are to be made: by then others are updated."""
    for work in works:
        check(kernel, work)


def _few(work: Work, places: list[int]) -> Iterator[list[int]]:
    few, elements = list[int](), 0
    for place in places:
        size = work.params[place].numel()
        if few and elements + size > _ELEMENTS:
            yield few
            few, elements = [], 0
        few.append(place)
        elements += size
    yield few
