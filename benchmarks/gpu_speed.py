"""Measure steps on CUDA: all variants in one process, in a new order each round."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

import optgen
from benchmarks.classes import accepted_parameters, class_of, torch_class
from benchmarks.gpu_cases import groups
from benchmarks.gpu_device import (
    DEVICE,
    REHEARSAL,
    capture,
    on_another_stream,
    peak_memory,
    release_memory,
    step_times,
    synchronize,
)
from benchmarks.gpu_results import Result
from optgen import use_lowering
from optgen.bench.tensor_lists import LISTS, LISTS_FOR_ALL, TensorList

OURS = "optgen fused Triton"
ROUNDS = 2 if REHEARSAL else 9
ROUND_MS = 1 if REHEARSAL else 60
"""Approximate time for which a variant is measured in a round."""
REHEARSAL_LIST = TensorList("rehearsal", "a few small ones", [(6, 5), (7,), (3, 2, 3, 3)])
MIN_STREAMS = {"Adafactor": 6, "Muon": 5}
"""The result of `min_streams` for rules with several sweeps or with row and column states."""
COMPILED_LISTS = ("2.5e7", "resnet50")
"""The lists for `torch.compile(opt.step)`. With more tensors, it takes minutes to compile."""
BFLOAT16_LISTS = ("2.5e7", "1e6")

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


def comparisons(names: Sequence[str], compiled: bool) -> dict[str, Callable[[], Result]]:
    """Return a comparison of every class on every list."""
    lists = (
        {"rehearsal": REHEARSAL_LIST}
        if REHEARSAL
        else {name: LISTS[name] for name in LISTS_FOR_ALL}
    )
    tasks: dict[str, Callable[[], Result]] = {"memory": memory}
    for key, tensors in lists.items():
        for name in names:
            types = (torch.float32, torch.bfloat16) if key in BFLOAT16_LISTS else (torch.float32,)
            for dtype in types:
                with_compile = compiled and key in COMPILED_LISTS and dtype == torch.float32
                run = partial(compare, name, tensors, dtype, with_compile)
                tasks[f"{name}, {tensors.title}, {str(dtype)[6:]}"] = run
    return tasks


@cache
def memory() -> Result:
    """Measure the GB/s of plain operations on large tensors. No kernel can be much faster."""
    size = 4096 if REHEARSAL else 2**28
    a, b, c = (torch.ones(size, device=DEVICE) for _ in range(3))
    operations: dict[str, tuple[int, Callable[[], Any]]] = {
        "copy: 1 read, 1 written": (2, lambda: c.copy_(a)),
        "add: 2 read, 1 written": (3, lambda: torch.add(a, b, out=c)),
        "addcmul: 3 read, 1 written": (4, lambda: torch.addcmul(a, b, c, out=c)),
    }
    gb_per_s = {}
    for title, (streams, run) in operations.items():
        run()
        best = min(step_times(run, 5)[0] for _ in range(5))
        gb_per_s[title] = 4 * size * streams / best / 1e6
    return {"gb_per_s": gb_per_s}


def min_streams(name: str) -> int:
    """Return the number of reads and writes of a parameter's size that a step needs."""
    cls = class_of(name)
    group = cls([torch.zeros(2, 2, requires_grad=True)]).param_groups[0]
    like = [s for s in cls.rule.states if s.shape == "like" and s.is_present(group)]
    return MIN_STREAMS.get(name, 3 + 2 * len(like))


def variants(name: str, compiled: bool) -> dict[str, MakeOptimizer]:
    """Return functions that make each optimizer. A function fails if torch lacks the form."""
    ours, theirs = class_of(name), getattr(torch.optim, name)
    by_title: dict[str, MakeOptimizer] = {
        OURS: lambda params: ours(params),
        f"{OURS}, in a graph": lambda params: ours(params, capturable=True),
        "optgen foreach": lambda params: ours(params, foreach=True),
        "torch for-loop": torch_class(name),
        "torch foreach": lambda params: theirs(params, foreach=True),
        "torch fused": lambda params: theirs(params, fused=True),
        "torch fused, in a graph": lambda params: theirs(params, fused=True, capturable=True),
    }
    if compiled:
        by_title["torch compiled"] = lambda params: theirs(params, foreach=True, capturable=True)
    return by_title


def compare(name: str, tensors: TensorList, dtype: torch.dtype, compiled: bool) -> Result:
    """Measure every variant on its own tensors: the first step, and medians over rounds."""
    steps: dict[str, Callable[[], Any]] = {}
    figures: dict[str, dict[str, Any]] = {}
    elements = 0
    for title, make in variants(name, compiled).items():
        params = parameters(name, tensors, dtype)
        elements = sum(param.numel() for param in params)
        try:
            grouped = groups(params, tensors.num_groups) if tensors.num_groups > 1 else params
            steps[title], figures[title] = start(title, make, grouped)
        except Exception as problem:  # torch has no such form, or cannot capture it
            figures[title] = {"absent": (str(problem).splitlines() or [repr(problem)])[0]}
    times = measure_rounds(steps)
    megabytes = min_streams(name) * dtype.itemsize * elements / 1e6
    for title, measured in times.items():
        device, host = zip(*measured, strict=True)
        median = statistics.median(device)
        figures[title] |= {"device_ms": median, "device_ms_min": min(device)}
        figures[title] |= {"host_ms": statistics.median(host), "gb_per_s": megabytes / median}
    steps.clear()
    release_memory()
    return {"tensors": len(params), "elements": elements, "variants": figures}


def measure_rounds(steps: dict[str, Callable[[], Any]]) -> dict[str, list[tuple[float, float]]]:
    """Measure the times of every variant, interleaved."""
    times: dict[str, list[tuple[float, float]]] = {title: [] for title in steps}
    step_counts = {
        title: max(1, min(50, round(ROUND_MS / max(step_times(step, 1)[0], 1e-3))))
        for title, step in steps.items()
    }
    for _ in range(ROUNDS):
        order = list(steps)
        random.shuffle(order)
        for title in order:
            times[title].append(step_times(steps[title], step_counts[title]))
    return times


def parameters(name: str, tensors: TensorList, dtype: torch.dtype) -> list[Tensor]:
    """Return the parameters of a list, with gradients, that a class accepts."""
    shapes = list(dict.fromkeys(tensors.shapes))
    tried = [torch.empty(shape, device="meta", requires_grad=True) for shape in shapes]
    accepted_shapes = {tuple(param.shape) for param in accepted_parameters(class_of(name), tried)}
    params = [
        torch.randn(s, device=DEVICE, dtype=dtype) for s in tensors.shapes if s in accepted_shapes
    ]
    for param in params:
        param.requires_grad_().grad = torch.randn_like(param)
    return params


def start(title: str, make: MakeOptimizer, params: Any) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Measure the first step, constructor included, and the memory of later steps.

    Return a function that takes a step, and the figures.
    """
    synchronize()
    begin = time.perf_counter()
    optimizer = make(params)
    step: Callable[[], Any] = optimizer.step
    if title == "torch compiled":
        step = torch.compile(step)
    if title.startswith(OURS) and REHEARSAL:
        step = partial(step_by_triton, step)
    step()
    synchronize()
    figures = {"first_step_s": time.perf_counter() - begin}
    if title.startswith(OURS) and not REHEARSAL:
        explained = optgen.explain(optimizer)
        if "fused Triton" not in explained:
            raise RuntimeError(f"the default is another lowering: {explained}")
    with on_another_stream():
        for _ in range(3):
            step()
    synchronize()
    figures["peak_bytes"] = peak_memory(step)
    return (capture(step) if title.endswith("in a graph") else step), figures


def step_by_triton(step: Callable[[], Any]) -> Any:
    """Take a step by fused Triton, which is not the default in a rehearsal."""
    with use_lowering("fused_triton"):
        return step()
