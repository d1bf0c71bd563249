"""Measure a cell with the function for its part of the benchmark."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from optgen.bench.cpu_contention import quiet_and_busy_times
from optgen.bench.first_step import first_steps
from optgen.bench.measure import Budget, compare_recreated
from optgen.bench.memory_traffic import Traffic
from optgen.bench.peak_memory import extra_memory
from optgen.bench.results import Cell, Figures
from optgen.bench.tensor_lists import LISTS
from optgen.bench.thread_determinism import count_different_tensors
from optgen.bench.torch_compile import compiled_step_times
from optgen.bench.variants import (
    OURS,
    Stepper,
    Variant,
    accepted_tensors,
    forms,
    gradient_copier,
    variants,
)

TrafficOf = Callable[[str], Sequence[Traffic] | None]
ONE_GROUP = f"{OURS}, one group"
_CACHED_BYTES = 4 << 20  # with parameters up to this size, caches hold all that a step reads
_REPEATS_IN_CACHES = 5  # the time varies with the memory pages: see measure.py


@dataclass(frozen=True)
class Suite:
    """Settings of a measurement: memory traffic of classes, time budget, and variants."""

    traffic: TrafficOf
    budget: Budget
    unfused: bool = False  # our for-loop and foreach are measured too
    compile_limit_seconds: float = 180.0

    def run(self, cell: Cell) -> Figures:
        """Measure one cell."""
        with torch_threads(cell.threads):
            figures = PARTS[cell.part](self, cell)
        gc.collect()  # the next cell may need the memory
        return figures


def measure_steps(suite: Suite, cell: Cell) -> Figures:
    """Measure a step of every variant, repeated and cold."""
    tensor_list, dtype = (
        accepted_tensors(cell.name, LISTS[cell.tensors]),
        getattr(torch, cell.dtype),
    )
    titles = forms(cell.name, dtype, unfused=suite.unfused)

    def create() -> dict[str, Variant]:
        created_variants = dict(
            variants(cell.name, tensor_list, dtype, suite.traffic(cell.name), titles)
        )
        if tensor_list.num_groups > 1:
            created_variants[ONE_GROUP] = Stepper(
                cell.name, OURS, replace(tensor_list, num_groups=1), dtype
            )
        return created_variants

    repeats = (
        _REPEATS_IN_CACHES if tensor_list.num_elements * dtype.itemsize <= _CACHED_BYTES else 1
    )
    return compare_recreated(create, gradient_copier(tensor_list, dtype), suite.budget, repeats)


PARTS: Mapping[str, Callable[[Suite, Cell], Figures]] = {
    "step": measure_steps,
    "first step": lambda suite, cell: first_steps(cell),
    "memory": lambda suite, cell: extra_memory(cell),
    "busy": lambda suite, cell: quiet_and_busy_times(cell),
    "bits": lambda suite, cell: count_different_tensors(cell),
    "compile": lambda suite, cell: compiled_step_times(cell, suite.compile_limit_seconds),
}


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads inside the context."""
    old_count = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(old_count)
