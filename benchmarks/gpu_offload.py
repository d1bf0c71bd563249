"""Offloaded steps on a card: their bits, the copies, and what a step hides behind.

The bits must be those of the composition that `optgen.offload` promises, stepped on the host. The
times are minima, and each stands beside the longest thing that it cannot be shorter than: the
copies of one direction at the speed that was measured here, the kernel on the host, or the forward
pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

import optgen
from benchmarks.classes import class_of
from benchmarks.gpu_cases import parameters, refill_gradients
from benchmarks.gpu_device import DEVICE, IS_SMALL, REHEARSAL, release_memory, synchronize
from benchmarks.gpu_results import Result, result_of
from optgen import modifiers

CLASSES = ("AdamW", "SGD")
SIDE, LAYERS, ROWS = (96, 4, 8) if IS_SMALL else (4096, 24, 16384)
"""Linear layers of SIDE x SIDE in bfloat16, and the rows of their input: 400 million elements."""
COPY_BYTES = 2**16 if IS_SMALL else 2**25
"""As many as a slot of the ring has by default."""
STEPS = 4
ROUNDS = 2 if IS_SMALL else 7
ON_THE_CPU = "not tried: parameters on the CPU have nothing to offload"

Tasks = dict[str, Callable[[], Result]]


def tasks(names: Sequence[str]) -> Tasks:
    """Return the tasks by name."""
    all_tasks: Tasks = {"copies of pinned memory": copies}
    for name in (name for name in CLASSES if name in names):
        all_tasks[f"{name}: bits of the composition"] = result_of(partial(bits, name))
        all_tasks[f"{name}: a step"] = partial(step_alone, name)
        all_tasks[f"{name}: a step and the next forward pass"] = partial(hidden, name)
    return all_tasks if not REHEARSAL else dict.fromkeys(all_tasks, lambda: {"absent": ON_THE_CPU})


def bits(name: str) -> tuple[float, float]:
    """Compare offloaded steps with those of the composition on the host."""
    params = parameters(name, torch.bfloat16, torch.bfloat16)
    if IS_SMALL:  # torch writes strided weights with a kernel that an emulated device cannot run
        params = [param for param in params if param.is_contiguous()]
    twins = [param.detach().cpu().requires_grad_() for param in params]
    cls = class_of(name)
    options: dict[str, Any] = {"lr": 1e-2}
    master = optgen.compose(cls, modifiers.state_dtype("float32"), modifiers.master)(
        twins, **options
    )
    with optgen.offload(cls, params, keep_on_device=0, **options) as optimizer:
        for number in range(STEPS):
            refill_gradients(params, number)
            for param, twin in zip(params, twins, strict=True):
                assert param.grad is not None
                twin.grad = param.grad.cpu()
            optimizer.step()
            master.step()
        found = [param.detach().cpu() for param in params]
    errors = [error(a, b) for a, b in zip(found, twins, strict=True) if a.numel()]
    return max(errors), 0.0


def error(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest number."""
    difference = (found.double() - expected.detach().double()).abs().max()
    scale = expected.detach().double().abs().max().clamp(min=1e-30)
    return (difference / scale).nan_to_num(nan=torch.inf).item()


@cache
def copies() -> Result:
    """Measure the GB/s of copies between the device and pinned memory, alone and both at once."""
    hosts = [torch.zeros(COPY_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    devices = [torch.zeros(COPY_BYTES, dtype=torch.uint8, device=DEVICE) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]

    def copy(*directions: int) -> None:
        for direction in directions:
            with torch.cuda.stream(streams[direction]):
                source, target = hosts[direction], devices[direction]
                if direction == 0:
                    source, target = target, source
                target.copy_(source, non_blocking=True)

    cases = {"to_host": (0,), "to_device": (1,), "both": (0, 1)}
    times = least({title: partial(copy, *directions) for title, directions in cases.items()})
    return {
        "gb_per_s": {
            title: len(directions) * COPY_BYTES / times[title] / 1e9
            for title, directions in cases.items()
        }
    }


def step_alone(name: str) -> Result:
    """Measure a step that nothing hides."""
    params = list(model().parameters())
    with optgen.offload(class_of(name), params, lr=1e-3) as optimizer:
        for param in params:
            param.grad = torch.full_like(param, 1e-3)
        optimizer.step()
        seconds = least({"step": optimizer.step})["step"]
        report = optimizer.report()
    speeds = copies()["gb_per_s"]
    parts = {
        "kernel_ms": report.kernel_ms,
        "to_host_ms": report.to_host_bytes / speeds["to_host"] / 1e6,
        "to_device_ms": report.to_device_bytes / speeds["to_device"] / 1e6,
    }
    return figures("step_ms", seconds, parts) | {"report": str(report)}


def hidden(name: str) -> Result:
    """Measure a clipped step and the next forward pass: each alone, and both together."""
    net = model()
    x = torch.zeros(ROWS, SIDE, dtype=torch.bfloat16, device=DEVICE)
    with optgen.offload(
        class_of(name), net.parameters(), module=net, clip_norm=1.0, lr=1e-3
    ) as optimizer:

        def step() -> None:
            for param in net.parameters():
                param.grad = torch.full_like(param, 1e-3)
            optimizer.step()

        def step_then_wait() -> None:
            step()
            optimizer.synchronize()

        @torch.no_grad()
        def forward() -> None:
            net(x)

        def both() -> None:
            step()
            forward()

        step_then_wait()
        times = least({"step": step_then_wait, "forward": forward, "both": both})
        optimizer.synchronize()
    parts = {f"{key}_ms": 1e3 * times[key] for key in ("step", "forward")}
    return figures("both_ms", times["both"], parts)


def model() -> nn.Module:
    """Return layers of one shape on the device, after the memory of earlier tasks is released."""
    release_memory()
    layers = (nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS))
    return nn.Sequential(*layers).to(DEVICE, torch.bfloat16)


def least(functions: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the least seconds of each function, with the work that it queues; they take turns."""
    times = dict.fromkeys(functions, float("inf"))
    for _ in range(ROUNDS):
        for title, function in functions.items():
            synchronize()
            began = time.perf_counter()
            function()
            synchronize()
            times[title] = min(times[title], time.perf_counter() - began)
    return times


def figures(title: str, seconds: float, parts: dict[str, float]) -> Result:
    """Return a time, its parts, and the time as a multiple of the longest part."""
    milliseconds = 1e3 * seconds
    return {title: milliseconds, **parts, "of_the_longest": milliseconds / max(parts.values())}
