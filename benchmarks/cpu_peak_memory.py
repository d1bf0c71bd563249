"""Measure the peak memory of a step beyond parameters, gradients and state.

Linux records the peak resident memory of a process (VmHWM) and can reset the record. The record
covers all pages, allocated by torch, by a kernel or by Python. Memory freed earlier would hide new
allocations, so the process first returns it to the system, and Python allocates objects with malloc
too. The first steps are measured, so that memory kept from one step to the next is included.
"""

import ctypes
import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import torch

from optgen.bench import child_process
from optgen.bench.results import Cell, Figures
from optgen.bench.tensor_lists import LISTS
from optgen.bench.variants import Stepper, accepted_tensors, forms, gradients
from optgen.runtime import GeneratedOptimizer

_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_FIRST_STEPS = 5


def extra_memory(cell: Cell) -> Figures:
    """Return the extra bytes of a step of each form, also as a share of the parameters' bytes."""
    request = {"name": cell.name, "tensors": cell.tensors, "dtype": cell.dtype}
    figures: Figures = child_process.ask(
        __name__, request | {"threads": cell.threads}, {"PYTHONMALLOC": "malloc"}
    )
    return figures


def measure_extra_memory(name: str, tensors: str, dtype: str, threads: int) -> Figures:
    """Return the extra bytes of the first steps of each form. Runs in a separate process."""
    torch.set_num_threads(threads)
    tensor_list, torch_dtype = accepted_tensors(name, LISTS[tensors]), getattr(torch, dtype)
    figures: Figures = {}
    for title in forms(name, torch_dtype):  # `forms` takes steps, so all libraries are loaded
        stepper = Stepper(name, title, tensor_list, torch_dtype)
        stepper.set_gradients(gradients(tensor_list, torch_dtype))
        if isinstance(stepper.optimizer, GeneratedOptimizer):
            stepper.optimizer.init_state()
        state_bytes_before = _state_bytes(stepper)
        extra_bytes = peak_growth(stepper.step, _FIRST_STEPS) - (
            _state_bytes(stepper) - state_bytes_before
        )
        param_bytes = sum(param.nbytes for param in stepper.params)
        figures[title] = {"bytes": extra_bytes, "of_params": extra_bytes / param_bytes}
    return figures


def peak_growth(function: Callable[[], object], times: int = 1) -> int:
    """Return by how many bytes the process grows, at its peak, while it calls a function."""
    ctypes.CDLL(None).malloc_trim(0)
    _CLEAR_REFS.write_text("5")  # resets VmHWM
    resident_before = _status_bytes("VmRSS")
    for _ in range(times):
        function()
    return _status_bytes("VmHWM") - resident_before


def _state_bytes(stepper: Stepper) -> int:
    values = chain.from_iterable(state.values() for state in stepper.optimizer.state.values())
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


def _status_bytes(name: str) -> int:
    """Return a figure of /proc/self/status in bytes."""
    match = re.search(rf"{name}:\s+(\d+) kB", _STATUS.read_text())
    assert match
    return int(match[1]) * 1024


if __name__ == "__main__":
    child_process.answer(measure_extra_memory)
