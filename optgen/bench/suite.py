"""Measure cells: steps of every variant, or `torch.compile(optimizer.step)` beside ours.

`torch.compile` is measured in a process of its own with empty caches. The process is killed after a
time limit, because for many tensors a build takes minutes.
"""

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch

from optgen.bench import child_process
from optgen.bench.measure import Budget, compare, compare_recreated
from optgen.bench.results import Cell, Figures
from optgen.bench.roofline import Traffic
from optgen.bench.tensor_lists import LISTS
from optgen.bench.variants import (
    FOREACH,
    OURS,
    Stepper,
    Variant,
    accepted_tensors,
    forms,
    gradient_copier,
    gradients,
    variants,
)

TrafficOf = Callable[[str], Sequence[Traffic] | None]
ONE_GROUP = f"{OURS}, one group"
_CACHED_BYTES = 4 << 20  # with parameters up to this size, caches hold all that a step reads
_REPEATS_IN_CACHES = 5  # the time varies with the memory pages: see measure.py


Measure = Callable[["Suite", Cell], Figures]
"""Measures a cell of one part of the benchmark."""


@dataclass(frozen=True)
class Suite:
    """Settings of a measurement: memory traffic of classes, time budget, and variants."""

    traffic: TrafficOf
    budget: Budget
    unfused: bool = False  # our for-loop and foreach are measured too
    compile_limit_seconds: float = 180.0
    parts: Mapping[str, Measure] = field(default_factory=lambda: PARTS)

    def run(self, cell: Cell) -> Figures:
        """Measure one cell."""
        with torch_threads(cell.threads):
            figures = self.parts[cell.part](self, cell)
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


PARTS: Mapping[str, Measure] = {
    "step": measure_steps,
    "compile": lambda suite, cell: compiled_step_times(cell, suite.compile_limit_seconds),
}
"""The function that measures each part of `optgen bench`. benchmarks/cpu.py has more parts."""


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads inside the context."""
    old_count = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(old_count)


COMPILED = "torch.compile"


def compiled_step_times(cell: Cell, limit_seconds: float) -> Figures:
    """Return seconds of the first two steps and times of later ones, or the exceeded limit."""
    request = {"name": cell.name, "tensors": cell.tensors, "dtype": cell.dtype}
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder}
        figures = child_process.ask(
            __name__, request | {"threads": cell.threads}, caches, limit_seconds
        )
    return figures or {COMPILED: {"not_done_after_s": limit_seconds}}


def compare_with_compiled(name: str, tensors: str, dtype: str, threads: int) -> Mapping[str, Any]:
    """Compile torch's step, then compare it with ours. Runs in a separate process."""
    torch.set_num_threads(threads)
    tensor_list, torch_dtype = accepted_tensors(name, LISTS[tensors]), getattr(torch, dtype)
    steppers = {OURS: Stepper(name, OURS, tensor_list, torch_dtype)}
    theirs = steppers[COMPILED] = Stepper(name, FOREACH, tensor_list, torch_dtype)
    for stepper in steppers.values():
        stepper.set_gradients(gradients(tensor_list, torch_dtype))
    theirs.step = torch.compile(theirs.optimizer.step)
    # Two steps, because SGD compiles again once it has momentum.
    build_seconds = [_step_seconds(theirs), _step_seconds(theirs)]
    figures: Figures = compare(steppers, gradient_copier(tensor_list, torch_dtype), Budget())
    figures[COMPILED] |= {"first_s": build_seconds[0], "second_s": build_seconds[1]}
    return figures


def _step_seconds(stepper: Stepper) -> float:
    start = time.perf_counter()
    stepper.step()
    return time.perf_counter() - start


_MANY_ELEMENTS = 5_000_000  # elements; with more, a step that multiplies matrices takes seconds

IsMemoryBound = Callable[[str], bool]
"""Tells whether memory limits a class's step: it does unless the step multiplies matrices."""


def combinations(
    part: str,
    names: Sequence[str],
    lists: Sequence[str],
    is_memory_bound: IsMemoryBound,
    dtypes: Sequence[str] = ("float32",),
    thread_counts: Sequence[int] = (1,),
) -> Iterator[Cell]:
    """Yield every combination, except lists that are too large or have no tensor for a class."""
    for count, dtype, tensors, name in product(thread_counts, dtypes, lists, names):
        accepted = accepted_tensors(name, LISTS[tensors])
        if accepted.shapes and (is_memory_bound(name) or accepted.num_elements <= _MANY_ELEMENTS):
            yield Cell(part, name, tensors, dtype, count)


if __name__ == "__main__":
    child_process.answer(compare_with_compiled)
