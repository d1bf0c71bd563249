"""Measure what the host does in a repeated fused Triton step, without a GPU.

    python -m benchmarks.triton_host            # prints a table
    python -m benchmarks.triton_host --out benchmarks/results/triton-host.json

The tensors are on the CPU. The kernels are compiled for an H100. A step does everything that it
does on a GPU up to Triton's launcher, which is stubbed: reading the tensors, comparing them with
the plan, the uploads, and Triton's own Python for each launch. torch's fused step runs up to its
kernels, which are stubbed too. What no figure contains: the driver, pinned memory, and the guard
that makes a device current.

Times are of this process's CPU, in microseconds per step: minima and medians. The variants take
turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from benchmarks.classes import accepted_parameters
from benchmarks.triton_aot_compile import TargetDriver
from optgen import optim, use_lowering
from optgen.runtime.fused_triton import backend, bucket
from optgen.verification.patch_attribute import patch_attribute

NAMES = ("AdamW", "SGD", "Adafactor", "Muon")
COUNTS = (1, 147, 2000)
SHAPE = (16, 16)
TORCH_KERNELS = ("_fused_adamw_", "_fused_sgd_", "_foreach_add_")
WARM_UP = 3


def compile_only(kernel: Any, grid: tuple[int, ...]) -> Callable[..., Any]:
    """Return a function that compiles a kernel as a launch does, and loads and launches nothing."""

    def bind(*args: Any, **options: Any) -> Any:
        compiled = kernel.run(*args, grid=grid, warmup=True, **options)
        # As if the kernel had been loaded: a launch then calls `_run` and no driver.
        compiled.module, compiled.function, compiled._run = "not loaded", 0, lambda *_: None
        return compiled

    return bind


def keep_operands(self: Any, op: Any, source: str, target: str, arguments: Any) -> None:
    """Replace a matrix op: its results are its operands."""
    self._set_local(target, self._locals[source])


@contextmanager
def without_a_gpu() -> Iterator[None]:
    """Take fused Triton steps of CPU tensors without launches, and torch's without kernels."""
    with ExitStack() as stack, knobs.cache.scope(), use_lowering("fused_triton"):
        knobs.cache.dir = stack.enter_context(tempfile.TemporaryDirectory())
        stand_ins = (
            (JITFunction, "__getitem__", compile_only),
            (backend, "device_obstacle", lambda device: ""),
            (bucket, "launch_context", lambda device: nullcontext()),
            (bucket.Bucket, "call", keep_operands),
            (driver, "_active", TargetDriver("sm_90")),
            *((torch, name, lambda *args, **kwargs: None) for name in TORCH_KERNELS),
        )
        for owner, name, value in stand_ins:
            stack.enter_context(patch_attribute(owner, name, value))
        yield


def parameters(cls: Any, count: int) -> list[Tensor]:
    """Return parameters with gradients."""
    params = [torch.ones(SHAPE, requires_grad=True) for _ in range(count)]
    for param in params:
        param.grad = torch.ones_like(param)
    return accepted_parameters(cls, params) if hasattr(cls, "rule") else params


def variants(name: str, count: int) -> dict[str, Callable[[], Any]]:
    """Return the steps to time, by title."""
    cls = getattr(optim, name)
    params, moved = parameters(cls, count), parameters(cls, count)
    gradients: Any = cycle([[p.grad for p in moved], [torch.ones_like(p) for p in moved]])
    ours, with_moved_gradients = cls(params), cls(moved)

    def move_gradients() -> Callable[[], Any]:
        for param, grad in zip(moved, next(gradients), strict=True):
            param.grad = grad
        step: Callable[[], Any] = with_moved_gradients.step
        return step

    steps: dict[str, Callable[[], Any]] = {
        "repeated": lambda: ours.step,
        "with moved gradients": move_gradients,
    }
    torch_class: Any = getattr(torch.optim, name, None)
    if f"_fused_{name.lower()}_" in TORCH_KERNELS:
        fused = torch_class(parameters(torch_class, count), fused=True)
        steps["torch fused"] = lambda: fused.step
    return steps


def measure(name: str, count: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the minimum and the median of each variant in microseconds, by title."""
    steps = variants(name, count)
    times: dict[str, list[float]] = {title: [] for title in steps}
    for turn in range(WARM_UP + rounds):
        for title, prepare in steps.items():
            step = prepare()
            start = time.process_time_ns()
            step()
            elapsed = (time.process_time_ns() - start) / 1e3
            if turn >= WARM_UP:
                times[title].append(elapsed)
    return {
        title: {"min": min(each), "median": statistics.median(each)}
        for title, each in times.items()
    }


def main() -> None:
    """Time all optimizers on all lists, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("names", nargs="*", default=NAMES)
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"torch": torch.__version__, "triton": triton.__version__, "us": {}}
    print("µs of host time per step: minimum (median)")
    with without_a_gpu():
        for name in arguments.names:
            for count in COUNTS:
                found = measure(name, count, arguments.rounds)
                figures["us"][f"{name}, {count}"] = found
                cells = (f"{t} {f['min']:.1f} ({f['median']:.1f})" for t, f in found.items())
                print(f"{name}, {count} tensors: {', '.join(cells)}", flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
