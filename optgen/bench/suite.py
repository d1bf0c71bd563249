"""What there is to measure, cell by cell, and each part's way to measure one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

import torch

from optgen.bench import measure
from optgen.bench.lists import LISTS
from optgen.bench.results import Cell, Figures
from optgen.bench.traffic import Traffic
from optgen.bench.variants import suited, variants

TrafficOf = Callable[[str], Sequence[Traffic] | None]


@dataclass(frozen=True)
class Suite:
    """How cells are measured: what a class reads and writes, and for how long."""

    traffic: TrafficOf
    budget: measure.Budget

    def run(self, cell: Cell) -> Figures:
        """Measure one cell."""
        with torch_threads(cell.threads):
            return PARTS[cell.part](self, cell)


def steps(suite: Suite, cell: Cell) -> Figures:
    """Times of a step, hot and cold, of every variant."""
    tensors, dtype = suited(cell.name, LISTS[cell.tensors]), getattr(torch, cell.dtype)
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.randn(s, generator=generator).to(dtype) for s in tensors.shapes]
    made = dict(variants(cell.name, tensors, dtype, gradients, suite.traffic(cell.name)))
    return measure.compare(made, gradients, suite.budget)


PARTS: Mapping[str, Callable[[Suite, Cell], Figures]] = {"step": steps}


def cells(
    part: str,
    names: Sequence[str],
    lists: Sequence[str],
    dtypes: Sequence[str] = ("float32",),
    threads: Sequence[int] = (1,),
) -> Iterator[Cell]:
    """Every combination, but classes on lists of which they can take no tensor."""
    for count, dtype, tensors, name in product(threads, dtypes, lists, names):
        if suited(name, LISTS[tensors]).shapes:
            yield Cell(part, name, tensors, dtype, count)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use so many threads, and afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
