"""Access the device that benchmarks/gpu.py measures: CUDA, or in a rehearsal the CPU.

A rehearsal runs Triton's interpreter and all code of the real run. Only CUDA has graphs, streams
and a profiler of kernels; a rehearsal runs their steps directly.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

REHEARSAL = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if REHEARSAL else "cuda"
IS_SMALL = REHEARSAL or os.environ.get("OPTGEN_GPU_SMALL") == "1"
"""True to take a few small tensors: in a rehearsal, and on a device that is emulated."""

Step = Callable[[], Any]


def synchronize() -> None:
    """Wait until the device has finished all queued work."""
    if not REHEARSAL:
        torch.cuda.synchronize()


def on_another_stream() -> AbstractContextManager[Any]:
    """Use another stream, which begins after all work that the current stream has queued."""
    if REHEARSAL:
        return nullcontext()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    return torch.cuda.stream(stream)


@dataclass(frozen=True)
class Replay:
    """A captured step. It keeps the step alive, and with it all memory that a replay writes."""

    graph: torch.cuda.CUDAGraph
    step: Step

    def __call__(self) -> None:
        """Queue the captured step."""
        self.graph.replay()


def capture(step: Step) -> Step:
    """Capture a step in a graph; return a function that replays it.

    The caller must first take three steps on another stream, as torch requires.
    """
    if REHEARSAL:
        return step
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return Replay(graph, step)


def step_times(step: Step, steps: int) -> tuple[float, float]:
    """Return the milliseconds of a step: on the device, and on the host until it is queued."""
    synchronize()
    clock = time.perf_counter()
    if REHEARSAL:
        for _ in range(steps):
            step()
        host = (time.perf_counter() - clock) / steps * 1e3
        return host, host
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    clock = time.perf_counter()
    for _ in range(steps):
        step()
    host = (time.perf_counter() - clock) / steps * 1e3
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / steps, host


def kernel_times(step: Step, steps: int) -> dict[str, tuple[float, int]]:
    """Return the microseconds and the launches of each kernel in one step, from torch's profiler.

    The result is empty where the profiler sees no kernels: in a rehearsal, and on machines that
    deny it the device's records.
    """
    if REHEARSAL:
        step()
        return {}
    synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
        synchronize()
    return {
        event.key: (event.self_device_time_total / steps, round(event.count / steps))
        for event in profiler.key_averages()
        if event.self_device_time_total > 0
    }


def peak_memory(step: Step) -> int:
    """Return the bytes that a step allocates at its peak."""
    if REHEARSAL:
        step()
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def release_memory() -> None:
    """Release memory that torch's allocator caches."""
    if not REHEARSAL:
        torch.cuda.empty_cache()


def replace_torch_compiler() -> None:
    """Let torch's optimizers step without SymPy, which torch's compiler needs.

    If SymPy is missing, a stand-in module provides the functions that the optimizers call.
    """
    try:
        import sympy  # noqa: F401
    except ImportError:
        stand_in: Any = ModuleType("torch._dynamo")
        stand_in.disable = lambda function, *_, **__: function
        stand_in.graph_break = lambda *_, **__: None
        sys.modules["torch._dynamo"] = torch._dynamo = stand_in
