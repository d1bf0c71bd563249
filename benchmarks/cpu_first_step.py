"""Measure constructor and first step in a new process, for our class and for torch's.

Our class is measured with an empty cache of compiled libraries (cold) and with a filled one (warm).
All figures are milliseconds. `first` is the first step. `again` is the first step of a second
optimizer in the same process, which also creates its state. `plain` is a later step. `states` is
the time that `torch.zeros_like` alone takes for the state tensors.
"""

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from optgen.bench import child_process
from optgen.bench.results import Cell, Figures
from optgen.bench.tensor_lists import LISTS, Shape, TensorList
from optgen.bench.variants import (
    DEFAULT,
    FUSED,
    OURS,
    accepted_tensors,
    forms,
    gradients,
    make_optimizer,
    parameters,
)

COLD, WARM = f"{OURS}, cold", f"{OURS}, warm"
_PLAIN_STEPS = 6  # `plain` is the fastest of them


def first_steps(cell: Cell) -> Figures:
    """Return the figures of our class, cold and warm, and of torch's forms."""
    tensor_list = accepted_tensors(cell.name, LISTS[cell.tensors])
    request = {"name": cell.name, "dtype": cell.dtype, "threads": cell.threads}
    request["shapes"] = tensor_list.shapes
    figures: Figures = {
        COLD: _summary(_measure_cold(request, times=1)),
        WARM: _summary(_measure_warm(request, times=3)),
    }
    for title in (DEFAULT, FUSED):
        if title in forms(cell.name, getattr(torch, cell.dtype)):
            figures[title] = child_process.ask(__name__, request | {"title": title})
    return figures


def _measure_cold(request: dict[str, Any], times: int) -> Iterator[dict[str, float]]:
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            yield _measure_ours(request, folder)


def _measure_warm(request: dict[str, Any], times: int) -> Iterator[dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        _measure_ours(request, folder)
        for _ in range(times):
            yield _measure_ours(request, folder)


def _measure_ours(request: dict[str, Any], folder: str) -> dict[str, float]:
    environment = {"OPTGEN_CACHE_DIR": str(Path(folder) / "cache")}
    figures: dict[str, float] = child_process.ask(__name__, request | {"title": OURS}, environment)
    return figures


def _summary(figures_of_processes: Iterator[dict[str, float]]) -> dict[str, float]:
    """Return the medians over several processes, and the fastest and slowest first step."""
    all_figures = list(figures_of_processes)
    first_times = [each["first"] for each in all_figures]
    medians = {key: statistics.median(each[key] for each in all_figures) for key in all_figures[0]}
    return medians | {"first_min": min(first_times), "first_max": max(first_times)}


def first_and_later_steps(
    name: str, title: str, shapes: Sequence[Shape], dtype: str, threads: int
) -> dict[str, float]:
    """Return the figures of one form of a class. Runs in a separate process."""
    torch.set_num_threads(threads)
    tensor_list = TensorList("", "", [tuple(each) for each in shapes])
    torch_dtype = getattr(torch, dtype)
    first, optimizer = _time_first_step(name, title, tensor_list, torch_dtype)
    states = _milliseconds(partial(_allocate_states, optimizer))
    plain = min(_milliseconds(optimizer.step) for _ in range(_PLAIN_STEPS))
    del optimizer  # free it now, not while the next one is measured
    again, _ = _time_first_step(name, title, tensor_list, torch_dtype)
    return {"first": first, "states": states, "plain": plain, "again": again}


def _time_first_step(
    name: str, title: str, tensor_list: TensorList, torch_dtype: torch.dtype
) -> tuple[float, torch.optim.Optimizer]:
    """Return the milliseconds of the constructor and the first step, and the optimizer."""
    params = parameters(tensor_list, torch_dtype)
    for param, gradient in zip(params, gradients(tensor_list, torch_dtype), strict=True):
        param.grad = gradient
    gc.collect()  # else the first collection after importing torch falls into the measured time
    start = time.perf_counter()
    optimizer = make_optimizer(name, title, params)
    optimizer.step()
    return (time.perf_counter() - start) * 1e3, optimizer


def _allocate_states(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Allocate tensors like an optimizer's states, which stay in their own memory."""
    states = (value for state in optimizer.state.values() for value in state.values())
    return list(map(torch.zeros_like, filter(torch.is_tensor, states)))


def _milliseconds(function: Callable[[], object]) -> float:
    """Return the milliseconds of a call, without the time that freeing its result takes."""
    start = time.perf_counter()
    result = function()
    end = time.perf_counter()
    del result
    return (end - start) * 1e3


if __name__ == "__main__":
    child_process.answer(first_and_later_steps)
