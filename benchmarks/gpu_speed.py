"""How fast is a step on CUDA: ratios in one process, variants interleaved in shuffled rounds."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

import optgen
from benchmarks.classes import accepted, generated, reference
from benchmarks.lists import SHAPES, Shape

RESULTS_OF_REDUCTIONS = {"Adafactor": 6, "Muon": 5}
"""Reads and writes of a parameter's size where a rule needs more than one trip, or keeps no more
than rows and columns."""

Result = dict[str, Any]


def run_speed(names: Sequence[str], quick: bool, compiled: bool) -> list[Result]:
    """Times of every variant, by class and list of tensors."""
    rounds, steps = (3, 5) if quick else (15, 20)
    results = []
    bandwidth = copy_bandwidth()
    print(f"\na copy moves {bandwidth:.0f} GB/s")
    for name in names:
        for title, shapes in SHAPES.items():
            if quick and sum(map(prod, shapes)) > 2_000_000:
                continue
            result = compare(name, shapes, rounds, steps, compiled)
            least = least_streams(name) * 4 * result["elements"] / 1e6
            result |= {"name": name, "list": title, "copy_gb_per_s": bandwidth}
            for figures in result["variants"].values():
                if "device_ms" in figures:
                    figures["gb_per_s"] = least / figures["device_ms"]
            results.append(result)
            show(result)
    return results


def least_streams(name: str) -> int:
    """Reads and writes of a parameter's size that a step cannot do without."""
    kind = generated(name)
    group = kind([torch.zeros(2, 2, requires_grad=True)]).param_groups[0]
    like = [s for s in kind.rule.states if s.shape == "like" and s.present(group)]
    return RESULTS_OF_REDUCTIONS.get(name, 3 + 2 * len(like))


def copy_bandwidth() -> float:
    """Bytes read and written per second by a plain copy of 400 MB."""
    source = torch.empty(100_000_000, device="cuda")
    target = torch.empty_like(source)
    milliseconds = [device_time(lambda: target.copy_(source), 10)[0] for _ in range(5)]
    return 8e8 / min(milliseconds) / 1e6


def variants(name: str, compiled: bool) -> dict[str, Callable[[Any], Any]]:
    """How to make each optimizer; one that torch does not have is found out by making it."""
    ours, theirs = generated(name), getattr(torch.optim, name)
    made: dict[str, Callable[[Any], Any]] = {
        "optgen fused Triton": lambda params: ours(params),
        "optgen foreach": lambda params: ours(params, foreach=True),
        "torch for-loop": reference(name),
        "torch foreach": lambda params: theirs(params, foreach=True),
        "torch fused": lambda params: theirs(params, fused=True),
    }
    if compiled:
        made["torch compiled"] = lambda params: theirs(params, foreach=True, capturable=True)
    return made


def compare(name: str, shapes: Sequence[Shape], rounds: int, steps: int, compiled: bool) -> Result:
    """First step, then medians over rounds, of every variant on tensors of its own."""
    running: dict[str, Callable[[], Any]] = {}
    figures: dict[str, dict[str, Any]] = {}
    for title, make in variants(name, compiled).items():
        made = [torch.randn(shape, device="cuda", requires_grad=True) for shape in shapes]
        params = accepted(name, made)
        for param in params:
            param.grad = torch.randn_like(param)
        try:
            running[title], figures[title] = start(title, make, params)
        except (TypeError, RuntimeError) as problem:
            figures[title] = {"absent": str(problem).splitlines()[0]}
    times: dict[str, list[tuple[float, float]]] = {title: [] for title in running}
    for _ in range(rounds):
        order = list(running)
        random.shuffle(order)
        for title in order:
            times[title].append(device_time(running[title], steps))
    for title, measured in times.items():
        device, host = zip(*measured, strict=True)
        figures[title] |= {
            "device_ms": statistics.median(device),
            "device_ms_min": min(device),
            "host_ms": statistics.median(host),
        }
    elements = sum(param.numel() for param in params)
    return {"tensors": len(params), "elements": elements, "variants": figures}


def start(
    title: str, make: Callable[[Any], Any], params: list[torch.Tensor]
) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Construct, take the first step, and say how long that took."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    optimizer = make(params)
    step = torch.compile(optimizer.step) if title == "torch compiled" else optimizer.step
    step()
    torch.cuda.synchronize()
    first = time.perf_counter() - begin
    if title == "optgen fused Triton" and "fused Triton" not in optgen.explain(optimizer):
        raise RuntimeError(f"the default is another lowering: {optgen.explain(optimizer)}")
    for _ in range(3):
        step()
    return step, {"first_step_s": first}


def device_time(step: Callable[[], Any], steps: int) -> tuple[float, float]:
    """Milliseconds a call: on the device, and of the host until it has queued everything."""
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    clock = time.perf_counter()
    begin.record()
    for _ in range(steps):
        step()
    end.record()
    host = (time.perf_counter() - clock) / steps * 1e3
    end.synchronize()
    return begin.elapsed_time(end) / steps, host


def show(result: Result) -> None:
    """A table: milliseconds, bandwidth, and how many times the fused Triton step's time."""
    print(f"\n{result['name']}, {result['list']}: {result['elements']:,} elements")
    ours = result["variants"]["optgen fused Triton"].get("device_ms")
    for title, figures in result["variants"].items():
        if "absent" in figures:
            print(f"  {title:22}  -  {figures['absent']}")
            continue
        ratio = f"x{figures['device_ms'] / ours:.2f}" if ours else ""
        print(
            f"  {title:22} {figures['device_ms']:9.3f} ms {figures['host_ms']:9.3f} host "
            f"{figures['gb_per_s']:8.0f} GB/s {ratio:>8}  first {figures['first_step_s']:.2f} s",
            flush=True,
        )
