"""Measure every kernel of a step alone: its time, its traffic, and the fraction of a copy's speed.

The times are those of torch's profiler. If it fails or sees no kernels, they are the times between
two events around each launch, in steps that the host queues behind other work; the report says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.classes import class_of
from benchmarks.gpu_device import DEVICE, IS_SMALL, REHEARSAL, kernel_times, release_memory
from benchmarks.gpu_report import ENOUGH
from benchmarks.gpu_results import Result
from benchmarks.gpu_speed import memory, parameters
from benchmarks.triton_aot_assembly import bytes_per_element
from optgen.bench.tensor_lists import TensorList
from optgen.runtime.fused_triton.launch_kernel import Launcher
from optgen.verification.patch_attribute import patch_attribute

STEPS = 2 if IS_SMALL else 10
IN_CACHE = 1 << 27
"""Bytes of a sweep that may stay in the device's cache, so that a copy from memory says nothing."""


EVENT_STEPS = 2 if IS_SMALL else 5
"""Steps that are timed by events, if the profiler gives nothing."""
FILLER = 1 << (12 if IS_SMALL else 30)
"""Bytes of a tensor. Copies of its halves keep the device busy while the host queues a step."""
FILLER_COPIES = 8


@dataclass
class Launches:
    """Figures of a kernel's launches in one step, the latest."""

    bytes_moved: float = 0.0
    tables: set[int] = field(default_factory=set)  # addresses of tables, one for each launch


def kernels_of_step(name: str, tensors: TensorList, dtype: torch.dtype) -> Result:
    """Measure the kernels of a step of a class, after steps that compile them."""
    if REHEARSAL:
        return {"absent": "Triton's interpreter has no kernels"}
    params = parameters(name, tensors, dtype)
    if not params:
        return {"absent": "the class takes none of these tensors"}
    optimizer = class_of(name)(params)
    with recorded_launches() as launches:
        for _ in range(3):
            optimizer.step()
        torch.cuda.synchronize()
    times, source = times_of_kernels(optimizer.step, launches)
    elements = sum(param.numel() for param in params)
    del optimizer, params
    release_memory()
    if not times:
        return {"absent": "the step launched no kernel of Triton"}
    copy = memory()["gb_per_s"]["copy: 1 read, 1 written"]
    in_all = sum(us for us, _ in times.values())
    kernels = [row(n, *times[n], in_all, launches.get(n), copy) for n in times]
    kernels.sort(key=lambda kernel: -kernel["us"])
    return {"kernels": kernels, "ms": in_all / 1e3, "elements": elements, "times_by": source}


def times_of_kernels(
    step: Callable[[], Any], launches: Mapping[str, Launches]
) -> tuple[dict[str, tuple[float, int]], str]:
    """Return the microseconds and the launches of each kernel in one step, and who timed them."""
    try:
        times = kernel_times(step, STEPS)
        why = "saw none of the kernels"
    except Exception as problem:  # a profiler that is missing, or has no right to the records
        times, why = {}, f"failed: {(str(problem).splitlines() or [repr(problem)])[0]}"
    if times.keys() & launches.keys():
        return times, "profiler"
    return between_events(step), f"events, as torch's profiler {why}"


def row(
    name: str, us: float, count: int, in_all: float, launches: Launches | None, copy: float
) -> dict[str, Any]:
    """Return the figures of a kernel, with a verdict: PASS, SLOW, or "" where there is none."""
    figures: dict[str, Any] = {"name": name, "us": us, "launches": count, "part": us / in_all}
    moved = launches.bytes_moved if launches else 0.0
    if not moved:
        return figures | {"verdict": ""}
    gb_per_s = moved / us / 1e3
    figures |= {"bytes": moved, "gb_per_s": gb_per_s, "of_copy": gb_per_s / copy}
    if moved < IN_CACHE:
        return figures | {"verdict": "fits the cache"}
    return figures | {"verdict": "PASS" if gb_per_s >= ENOUGH * copy else "SLOW"}


@contextmanager
def recorded_launches() -> Iterator[Mapping[str, Launches]]:
    """Record every launch of a Triton kernel; yield the launches of the last step, by name.

    A step launches each kernel once for each bucket. So when a kernel's table comes back, the next
    step has begun. Only launches through Triton's binder are seen: those of the first steps.
    """
    from triton.runtime.jit import JITFunction

    launches: defaultdict[str, Launches] = defaultdict(Launches)
    run = JITFunction.run

    def recording(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        compiled = run(kernel, *args, grid=grid, warmup=warmup, **options)
        named = dict(zip(kernel.arg_names, args, strict=False))
        table = named.get("table")
        if table is not None:
            if table.data_ptr() in launches[compiled.name].tables:
                launches[compiled.name] = Launches()
            launches[compiled.name].tables.add(table.data_ptr())
            launches[compiled.name].bytes_moved += bytes_moved(compiled, options, named)
        return compiled

    with patch_attribute(JITFunction, "run", recording):
        yield launches


def bytes_moved(compiled: Any, options: Mapping[str, Any], arguments: Mapping[str, Any]) -> float:
    """Return the bytes of the elements that a sweep reads and writes."""
    read, written = bytes_per_element(compiled.asm["ttir"], options)
    if not read:
        return 0.0
    numels = arguments["table"].view(-1)[: arguments["num_tensors"]]  # the first row of a table
    return (read + written) * int(numels.sum())


def between_events(step: Callable[[], Any]) -> dict[str, tuple[float, int]]:
    """Return the microseconds and the launches of each kernel in the fastest of some steps.

    The events are recorded while the device copies, so no gap between two launches is measured.
    """
    times: dict[str, tuple[float, int]] = {}
    filler = torch.zeros(FILLER, dtype=torch.uint8, device=DEVICE)
    for _ in range(EVENT_STEPS):
        events: defaultdict[str, list[tuple[Any, Any]]] = defaultdict(list)
        torch.cuda.synchronize()
        keep_busy(filler)
        with timed_launches(events):
            step()
        torch.cuda.synchronize()
        for name, pairs in events.items():
            us = 1e3 * sum(begin.elapsed_time(end) for begin, end in pairs)
            times[name] = min(times.get(name, (us, len(pairs))), (us, len(pairs)))
    return times


def keep_busy(filler: Tensor) -> None:
    """Queue some copies of one half of a tensor to the other."""
    first, second = filler.chunk(2)
    for _ in range(FILLER_COPIES):
        first.copy_(second)


@contextmanager
def timed_launches(events: Mapping[str, list[tuple[Any, Any]]]) -> Iterator[None]:
    """Record an event before and after each launch of a step; add them by the kernel's name."""
    launch = Launcher.__call__

    def timed(launcher: Launcher, kernel: Any, *args: Any, **options: Any) -> None:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        launch(launcher, kernel, *args, **options)
        after.record()
        events[kernel.__name__].append((before, after))

    with (
        patch_attribute(Launcher, "__call__", timed),
        patch_attribute(Launcher, "repeat", lambda launcher: False),
    ):
        yield


def kernel_tasks(
    names: tuple[str, ...], lists: Mapping[str, TensorList], dtypes: tuple[torch.dtype, ...]
) -> dict[str, partial[Result]]:
    """Return a measurement of the kernels of every class on every list in every dtype."""
    return {
        f"kernels of {name}, {tensors.title}, {str(dtype)[6:]}": partial(
            kernels_of_step, name, tensors, dtype
        )
        for tensors in lists.values()
        for name in names
        for dtype in dtypes
    }
