"""Measure `torch.compile(optimizer.step)`: its build time, and its steps beside ours.

The measurement runs in a separate process with empty caches. The process is killed after a
time limit, because for many tensors a build takes minutes.
"""

import tempfile
import time
from collections.abc import Mapping
from typing import Any

import torch

from optgen.bench import child_process
from optgen.bench.measure import Budget, compare
from optgen.bench.results import Cell, Figures
from optgen.bench.tensor_lists import LISTS
from optgen.bench.variants import (
    FOREACH,
    OURS,
    Stepper,
    accepted_tensors,
    gradient_copier,
    gradients,
)

COMPILED = "torch.compile"


def compiled_step_times(cell: Cell, limit: float) -> Figures:
    """Return seconds of the first two steps and times of later ones, or the limit if exceeded."""
    request = {"name": cell.name, "tensors": cell.tensors, "dtype": cell.dtype}
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder}
        figures = child_process.ask(__name__, request | {"threads": cell.threads}, caches, limit)
    return figures or {COMPILED: {"not_done_after_s": limit}}


def compare_with_compiled(name: str, tensors: str, dtype: str, threads: int) -> Mapping[str, Any]:
    """Compile torch's step, then compare it with ours. Runs in a separate process."""
    torch.set_num_threads(threads)
    tensor_list, torch_dtype = accepted_tensors(name, LISTS[tensors]), getattr(torch, dtype)
    both = {OURS: Stepper(name, OURS, tensor_list, torch_dtype)}
    theirs = both[COMPILED] = Stepper(name, FOREACH, tensor_list, torch_dtype)
    for stepper in both.values():
        stepper.set_gradients(gradients(tensor_list, torch_dtype))
    theirs.step = torch.compile(theirs.optimizer.step)
    seconds = [_seconds(theirs), _seconds(theirs)]  # SGD compiles again once it has momentum
    figures: Figures = compare(both, gradient_copier(tensor_list, torch_dtype), Budget())
    figures[COMPILED] |= {"first_s": seconds[0], "second_s": seconds[1]}
    return figures


def _seconds(stepper: Stepper) -> float:
    start = time.perf_counter()
    stepper.step()
    return time.perf_counter() - start


if __name__ == "__main__":
    child_process.answer(compare_with_compiled)
