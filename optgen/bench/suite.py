"""Measure a cell with the function for its part of the benchmark."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from optgen.bench.cpu_contention import quiet_and_busy
from optgen.bench.first_step import first_steps
from optgen.bench.measure import Budget, compare_redrawn
from optgen.bench.memory_traffic import Traffic
from optgen.bench.peak_memory import peaks
from optgen.bench.results import Cell, Figures
from optgen.bench.tensor_lists import LISTS
from optgen.bench.thread_determinism import same_bits
from optgen.bench.torch_compile import compiled
from optgen.bench.variants import OURS, Stepper, Variant, forms, renewal, suited, variants

TrafficOf = Callable[[str], Sequence[Traffic] | None]
ONE_GROUP = f"{OURS}, one group"
_CACHED_BYTES = 4 << 20  # of parameters, up to which caches hold all that a step reads


@dataclass(frozen=True)
class Suite:
    """Settings of a measurement: memory traffic of classes, time budget, and variants."""

    traffic: TrafficOf
    budget: Budget
    unfused: bool = False  # whether to measure our for-loop and foreach too
    compile_limit: float = 180.0  # seconds

    def run(self, cell: Cell) -> Figures:
        """Measure one cell."""
        with torch_threads(cell.threads):
            figures = PARTS[cell.part](self, cell)
        gc.collect()  # the next cell may need the memory
        return figures


def steps(suite: Suite, cell: Cell) -> Figures:
    """Measure a step of every variant, repeated and cold."""
    tensors, dtype = suited(cell.name, LISTS[cell.tensors]), getattr(torch, cell.dtype)
    titles = forms(cell.name, dtype, unfused=suite.unfused)

    def draw() -> dict[str, Variant]:
        drawn = dict(variants(cell.name, tensors, dtype, suite.traffic(cell.name), titles))
        if tensors.groups > 1:
            drawn[ONE_GROUP] = Stepper(cell.name, OURS, replace(tensors, groups=1), dtype)
        return drawn

    draws = 5 if tensors.elements * dtype.itemsize <= _CACHED_BYTES else 1
    return compare_redrawn(draw, renewal(tensors, dtype), suite.budget, draws)


PARTS: Mapping[str, Callable[[Suite, Cell], Figures]] = {
    "step": steps,
    "first step": lambda suite, cell: first_steps(cell),
    "memory": lambda suite, cell: peaks(cell),
    "busy": lambda suite, cell: quiet_and_busy(cell),
    "bits": lambda suite, cell: same_bits(cell),
    "compile": lambda suite, cell: compiled(cell, suite.compile_limit),
}


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads inside the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
