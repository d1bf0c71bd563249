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
    IS_SMALL,
    REHEARSAL,
    capture,
    on_another_stream,
    peak_memory,
    release_memory,
    step_times,
    synchronize,
)
from benchmarks.gpu_report import COMPILED, OURS, THEIRS
from benchmarks.gpu_results import Result
from optgen import use_lowering
from optgen.bench.tensor_lists import LISTS, LISTS_FOR_ALL, TensorList

ROUNDS = 2 if IS_SMALL else 9
QUICK_ROUNDS = 2 if IS_SMALL else 3
ROUND_MS = 1 if IS_SMALL else 60
"""Approximate time for which a variant is measured in a round."""
SMALL_LIST = TensorList("small", "a few small ones", [(6, 5), (7,), (3, 2, 3, 3)])
_GPT2_LAYER = [(2304, 768), (768, 768), (3072, 768), (768, 3072)]
LAYER = TensorList("layer", "matrices of a GPT-2 layer", _GPT2_LAYER)
"""A list for rules that decompose matrices: those of the other lists are too large."""
QUICK_LISTS = ("2.5e7", "resnet50", "2000x256")
MIN_STREAMS = {"Adafactor": 6, "Muon": 5}
"""The result of `min_streams` for rules with several sweeps or with row and column states."""
COMPILED_LISTS = ("2.5e7", "resnet50")
"""The lists for `torch.compile(opt.step)`. With more tensors, it takes minutes to compile."""
BFLOAT16_LISTS = ("2.5e7", "1e6")
IN_A_GRAPH = f"{OURS}, in a graph"
QUICK_VARIANTS = (OURS, IN_A_GRAPH, "optgen foreach", "torch for-loop", "torch foreach", THEIRS)

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]
Tasks = dict[str, Callable[[], Result]]


def comparisons(names: Sequence[str]) -> Tasks:
    """Return a comparison of every class on every list."""
    tasks: Tasks = {"memory": memory}
    for key, tensors in lists_of(LISTS_FOR_ALL).items():
        for name in names:
            types = (torch.float32, torch.bfloat16) if key in BFLOAT16_LISTS else (torch.float32,)
            for dtype in types:
                run = partial(compare, name, tensors, dtype, tuple(variants(name)), ROUNDS)
                tasks[f"{name}, {tensors.title}, {str(dtype)[6:]}"] = run
    return tasks


def quick_comparisons(name: str, dtype: torch.dtype) -> Tasks:
    """Return the comparisons of a class in the first minutes, without torch.compile."""
    lists = {"layer": LAYER} if class_of(name).rule.why_uncut else lists_of(QUICK_LISTS)
    titles = tuple(title for title in QUICK_VARIANTS if title != IN_A_GRAPH or "layer" not in lists)
    return {
        f"{name}, {tensors.title}, {str(dtype)[6:]}": partial(
            compare, name, SMALL_LIST if IS_SMALL else tensors, dtype, titles, QUICK_ROUNDS
        )
        for tensors in lists.values()
    }


def compiled_comparisons(names: Sequence[str]) -> Tasks:
    """Return comparisons with torch.compile(step), which takes most of a minute to compile."""
    titles = (OURS, COMPILED)
    return {
        f"{name}, {tensors.title}, float32": partial(
            compare, name, tensors, torch.float32, titles, ROUNDS
        )
        for tensors in lists_of(COMPILED_LISTS).values()
        for name in names
    }


def lists_of(keys: Sequence[str]) -> dict[str, TensorList]:
    """Return lists by key; on a small device one small list instead."""
    return {"small": SMALL_LIST} if IS_SMALL else {key: LISTS[key] for key in keys}


@cache
def memory() -> Result:
    """Measure the GB/s of plain operations on large tensors. No kernel can be much faster."""
    size = 4096 if IS_SMALL else 2**28
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


def variants(name: str) -> dict[str, MakeOptimizer]:
    """Return functions that make each optimizer. A function fails if torch lacks the form."""
    ours, theirs = class_of(name), getattr(torch.optim, name, None)
    by_title: dict[str, MakeOptimizer] = {
        OURS: lambda params: ours(params),
        IN_A_GRAPH: lambda params: ours(params, fused=True, capturable=True),
        "optgen foreach": lambda params: ours(params, foreach=True),
    }
    if theirs is None:
        return by_title
    return by_title | {
        "torch for-loop": torch_class(name),
        "torch foreach": lambda params: theirs(params, foreach=True),
        THEIRS: lambda params: theirs(params, fused=True),
        f"{THEIRS}, in a graph": lambda params: theirs(params, fused=True, capturable=True),
        COMPILED: lambda params: theirs(params, foreach=True, capturable=True),
    }


def compare(
    name: str, tensors: TensorList, dtype: torch.dtype, titles: Sequence[str], rounds: int
) -> Result:
    """Measure variants on tensors of their own: the first step, and medians over rounds."""
    steps: dict[str, Callable[[], Any]] = {}
    figures: dict[str, dict[str, Any]] = {}
    by_title = variants(name)
    for title in (title for title in titles if title in by_title):
        params = parameters(name, tensors, dtype)
        if not params:
            return {"absent": "the class takes none of these tensors"}
        elements = sum(param.numel() for param in params)
        try:
            grouped = groups(params, tensors.num_groups) if tensors.num_groups > 1 else params
            steps[title], figures[title] = start(title, by_title[title], grouped)
        except Exception as problem:  # torch has no such form, or cannot capture it
            figures[title] = {"absent": (str(problem).splitlines() or [repr(problem)])[0]}
    times = measure_rounds(steps, rounds)
    megabytes = min_streams(name) * dtype.itemsize * elements / 1e6
    for title, measured in times.items():
        device, host = zip(*measured, strict=True)
        median = statistics.median(device)
        figures[title] |= {"device_ms": median, "device_ms_min": min(device)}
        figures[title] |= {"host_ms": statistics.median(host), "gb_per_s": megabytes / median}
    steps.clear()
    release_memory()
    return {"tensors": len(params), "elements": elements, "variants": figures}


def measure_rounds(
    steps: dict[str, Callable[[], Any]], rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Measure the times of every variant, interleaved."""
    times: dict[str, list[tuple[float, float]]] = {title: [] for title in steps}
    step_counts = {
        title: max(1, min(50, round(ROUND_MS / max(step_times(step, 1)[0], 1e-3))))
        for title, step in steps.items()
    }
    for _ in range(rounds):
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
    optimizer: Any = make(params)
    step: Callable[[], Any] = optimizer.step
    if title == COMPILED:
        step = torch.compile(step)
    if title.startswith(OURS) and REHEARSAL and not optimizer.rule.why_uncut:
        step = partial(step_by_triton, step)
    step()
    synchronize()
    figures = {"first_step_s": time.perf_counter() - begin}
    if title.startswith(OURS) and not is_fused(optimizer):
        raise RuntimeError(f"the default is another lowering: {optgen.explain(optimizer)}")
    with on_another_stream():
        for _ in range(3):
            step()
    synchronize()
    figures["peak_bytes"] = peak_memory(step)
    return (capture(step) if title.endswith("in a graph") else step), figures


def is_fused(optimizer: Any) -> bool:
    """Tell whether the next step takes the device's fused lowering, or parts of it."""
    return "fused" in optgen.explain(optimizer) or bool(optimizer.rule.why_uncut)


def step_by_triton(step: Callable[[], Any]) -> Any:
    """Take a step by fused Triton, which is not the default in a rehearsal."""
    with use_lowering("fused_triton"):
        return step()
