"""Measure a step while another process keeps one core busy, and without that process.

The other process is stopped and continued for every pair of samples, so that slow changes of the
machine affect both figures alike.
"""

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from optgen.bench.measure import mean_seconds
from optgen.bench.results import Cell, Figures
from optgen.bench.tensor_lists import LISTS
from optgen.bench.variants import FUSED, OURS, Stepper, accepted_tensors, forms, gradients

_SAMPLES = 15  # of each kind, quiet and busy
_WARM_UP_STEPS = 3
_SETTLE_SECONDS = 0.05  # until the other process surely runs, or has stopped


def quiet_and_busy_times(cell: Cell) -> Figures:
    """Return milliseconds of a step of our class and of torch's fused form.

    "quiet" is the time without the other process, "busy" the time beside it.
    """
    tensor_list, dtype = (
        accepted_tensors(cell.name, LISTS[cell.tensors]),
        getattr(torch, cell.dtype),
    )
    figures: Figures = {}
    for title in (OURS, FUSED):
        if title in forms(cell.name, dtype):
            stepper = Stepper(cell.name, title, tensor_list, dtype)
            stepper.set_gradients(gradients(tensor_list, dtype))
            for _ in range(_WARM_UP_STEPS):
                stepper.step()
            figures[title] = _median_milliseconds(stepper)
    return figures


def _median_milliseconds(stepper: Stepper) -> dict[str, float]:
    times: dict[str, list[float]] = {"quiet": [], "busy": []}
    with _busy_process() as busy_process:
        for _ in range(_SAMPLES):
            for key, process_signal in (("quiet", signal.SIGSTOP), ("busy", signal.SIGCONT)):
                os.kill(busy_process.pid, process_signal)
                time.sleep(_SETTLE_SECONDS)
                times[key].append(mean_seconds(stepper.step) * 1e3)
    return {key: statistics.median(samples) for key, samples in times.items()}


@contextmanager
def _busy_process() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            yield child
        finally:
            child.kill()
