"""Measure every kernel of a step alone: its time, its traffic, and the fraction of a copy's speed.

The times are those of torch's profiler. If it sees no kernels, they are the times between two
events around each launch, which also hold the gap before a small kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from benchmarks.classes import class_of
from benchmarks.gpu_device import IS_SMALL, REHEARSAL, kernel_times, release_memory
from benchmarks.gpu_report import ENOUGH
from benchmarks.gpu_results import Result
from benchmarks.gpu_speed import memory, parameters
from benchmarks.triton_aot_assembly import bytes_per_element
from optgen.bench.tensor_lists import TensorList
from optgen.verification.patch_attribute import patch_attribute

STEPS = 2 if IS_SMALL else 10
IN_CACHE = 1 << 27
"""Bytes of a sweep that may stay in the device's cache, so that a copy from memory says nothing."""


@dataclass
class Launches:
    """Figures of a kernel's launches in one step."""

    bytes_moved: float = 0.0
    events: list[tuple[Any, Any]] = field(default_factory=list)  # before and after each launch


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
    times = kernel_times(optimizer.step, STEPS)
    source = "profiler" if times else "events"
    times = times or between_events(launches)
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
    step has begun.
    """
    from triton.runtime.jit import JITFunction

    launches: defaultdict[str, Launches] = defaultdict(Launches)
    tables: defaultdict[str, set[int]] = defaultdict(set)
    run = JITFunction.run

    def recording(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        compiled = run(kernel, *args, grid=grid, warmup=warmup, **options)
        after.record()
        named = dict(zip(kernel.arg_names, args, strict=False))
        table = named.get("table")
        if table is not None:
            if table.data_ptr() in tables[compiled.name]:
                tables[compiled.name].clear()
                launches[compiled.name] = Launches()
            tables[compiled.name].add(table.data_ptr())
            launches[compiled.name].bytes_moved += bytes_moved(compiled, options, named)
        launches[compiled.name].events.append((before, after))
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


def between_events(launches: Mapping[str, Launches]) -> dict[str, tuple[float, int]]:
    """Return the microseconds and the launches of each kernel in the last recorded step."""
    return {
        name: (1e3 * sum(begin.elapsed_time(end) for begin, end in each.events), len(each.events))
        for name, each in launches.items()
    }


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
