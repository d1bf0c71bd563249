"""How much memory a step takes beyond parameters, gradients and state, at its peak.

Linux keeps the most that a process ever had in memory (VmHWM) and lets it start anew. That counts
pages, whoever took them: torch's allocator, a kernel's, Python's. What was freed earlier would not
show, so it is given back to the system before, and Python takes its objects from malloc too.
"""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import torch

from optgen.bench import process
from optgen.bench.lists import LISTS
from optgen.bench.results import Cell, Figures
from optgen.bench.variants import Stepper, forms, gradients, suited

_STATUS, _PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_TIMES = 5


def peaks(cell: Cell) -> Figures:
    """Extra bytes of a step of each form of a class, and of its parameters for comparison."""
    request = {"name": cell.name, "tensors": cell.tensors, "dtype": cell.dtype}
    found: Figures = process.ask(
        __name__, request | {"threads": cell.threads}, {"PYTHONMALLOC": "malloc"}
    )
    return found


def measured(name: str, tensors: str, dtype: str, threads: int) -> Figures:
    """In a process of its own: the most of several steps, after some that made the state."""
    torch.set_num_threads(threads)
    taken, kind = suited(name, LISTS[tensors]), getattr(torch, dtype)
    figures: Figures = {}
    for title in forms(name, kind):
        stepper = Stepper(name, title, taken, kind)
        stepper.take(gradients(taken, kind))
        for _ in range(3):
            stepper.step()
        params = sum(param.nbytes for param in stepper.params)
        found = max(peak(stepper.step) for _ in range(_TIMES))
        figures[title] = {"bytes": found, "of_params": found / params}
    return figures


def peak(function: Callable[[], object]) -> int:
    """By how many bytes the process grows while it calls a function."""
    ctypes.CDLL(None).malloc_trim(0)
    _PEAK.write_text("5")
    before = _status("VmRSS")
    function()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", _STATUS.read_text())
    assert found
    return int(found[1]) * 1024


if __name__ == "__main__":
    process.answer(measured)
