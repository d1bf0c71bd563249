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


if __name__ == "__main__":
    child_process.answer(compare_with_compiled)
