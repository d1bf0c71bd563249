"""Measure offloaded steps on the simulated device of the tests: the kernel's call, and the overlap.

python benchmarks/offload.py [kernel] [arrival] [overlap] [hidden]

Delays of the device are sleeps, so overlap can be measured without a GPU. All figures are minima,
and of the kernel also medians of the ratios of rounds, in which all take turns. The device says
nothing about the speed of a GPU.

DeepSpeed's CPUAdam is measured if DeepSpeed is installed, and if ninja is on the PATH: it compiles
for minutes, once. `make test-frameworks` makes such a virtual environment, .venv-frameworks. Of
torchao's CPUOffloadOptimizer, which refuses the simulated device, its way is measured: an optimizer
of torch for each tensor, on weights, gradients and moments in bfloat16. It moves half of the bytes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import device  # type: ignore[import-not-found,unused-ignore]
import torch
from torch import Tensor, nn

import optgen
from optgen.runtime.torch_private import thread_pool

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "25M": [(25_000_000,)],
    "2,000 x 256": [(256,)] * 2000,
    "64 x 256": [(256,)] * 64,
    "16 x 256": [(256,)] * 16,
    "1 x 256": [(256,)],
}
ROUNDS = 7
KERNEL_ROUNDS = 60  # 7 have shown 0.5 and 1.5 for the same ratio on a loaded machine
COPY_SECONDS = 0.04
BUCKETS, BUCKET_ELEMENTS = 24, 1_000_000


def interleaved(*functions: Callable[[], object], rounds: int = ROUNDS) -> list[list[float]]:
    """Return the times of each function, in seconds; they take turns."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for index, function in enumerate(functions):
            began = time.perf_counter()
            function()
            times[index].append(time.perf_counter() - began)
    return times


def minimum(*functions: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Return the least time of each function, in seconds; they take turns."""
    return list(map(min, interleaved(*functions, rounds=rounds)))


def bf16_params(shapes: list[tuple[int, ...]]) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(s, dtype=torch.bfloat16, device="sim")) for s in shapes]


def bucket_call(shapes: list[tuple[int, ...]], **options: Any) -> Callable[[], None]:
    """Return a function that calls the kernel of all parameters, in one bucket."""
    optimizer = optgen.offload(
        "adamw",
        bf16_params(shapes),
        keep_on_device=0,
        bucket_bytes=1 << 26,
        slots=1,
        threads=1,
        **options,
    )
    (kernel,) = optimizer._stepper.host.pipeline._kernels
    hypers, pool = optimizer._packed_hypers(0.5), thread_pool(1)
    rows = range(len(shapes))

    def call(kept: Any = optimizer) -> None:  # the table points into its memory
        kernel.run(0, 0, rows, hypers, pool)

    return call


def with_casts(
    shapes: list[tuple[int, ...]], make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
) -> Callable[[], None]:
    """Return what people write by hand: casts around an optimizer of float32 weights."""
    params = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    arrived, weights = ([torch.zeros(s, dtype=torch.bfloat16) for s in shapes] for _ in range(2))
    grads = [torch.zeros_like(param) for param in params]
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad
    optimizer = make(params)

    def step() -> None:
        torch._foreach_copy_(grads, arrived)
        optimizer.step()
        torch._foreach_copy_(weights, [param.data for param in params])

    return step


def torch_with_casts(shapes: list[tuple[int, ...]]) -> Callable[[], None]:
    return with_casts(shapes, lambda params: torch.optim.AdamW(params, fused=True))


def deepspeed_with_casts(shapes: list[tuple[int, ...]]) -> Callable[[], None]:
    from deepspeed.ops.adam import (  # type: ignore[import-not-found,unused-ignore]
        DeepSpeedCPUAdam,
    )

    return with_casts(shapes, lambda params: DeepSpeedCPUAdam(params, adamw_mode=True))


def torchao_way(shapes: list[tuple[int, ...]]) -> Callable[[], None]:
    """Return a step of an optimizer for each tensor, without float32 weights."""
    params = [nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16)) for shape in shapes]
    optimizers = [torch.optim.AdamW([param], fused=True) for param in params]
    for param in params:
        param.grad = torch.zeros_like(param)

    def step() -> None:
        for optimizer in optimizers:
            optimizer.step()

    return step


PEERS = {
    "torch's fused step with casts": torch_with_casts,
    "DeepSpeed's CPUAdam with casts": deepspeed_with_casts,
    "torchao's way, all in bfloat16": torchao_way,
}


def measure_kernel() -> None:
    peers = {**PEERS}
    if find_spec("deepspeed") is None:
        del peers["DeepSpeed's CPUAdam with casts"]
    for name, shapes in SHAPES.items():
        functions = [bucket_call(shapes), bucket_call(shapes, clip_norm=1.0)]
        functions += [make(shapes) for make in peers.values()]
        ours, clipped, *theirs = interleaved(*functions, rounds=KERNEL_ROUNDS)
        factor = min(clipped) / min(ours)
        print(f"{name}: {1e6 * min(ours):,.0f} us a call; with a factor {factor:.2f} of that")
        for peer, times in zip(peers, theirs, strict=True):
            ratio = median(a / b for a, b in zip(ours, times, strict=True))
            print(f"    of {peer}: {min(ours) / min(times):.2f}, median {ratio:.2f}")


def arrival(elements: int, clip_norm: float | None) -> Callable[[], None]:
    """Return a function that keeps a gradient which has arrived, and then steps."""
    optimizer = optgen.offload(
        "adamw",
        bf16_params([(elements,)]),
        gradients="leave",
        accumulation=1,
        clip_norm=clip_norm,
        bucket_bytes=1 << 26,
        slots=1,
        threads=1,
    )
    host = optimizer._stepper.host
    (bucket,), (kernel,) = host.buckets, host.pipeline._kernels
    (gradient,) = host.ring.gradients[0][0]
    sums, hypers, pool = host.sums, optimizer._packed_hypers(0.5), thread_pool(1)
    assert sums is not None

    def call(kept: Any = optimizer) -> None:  # the table points into its memory
        sums.add(bucket, 0, gradient, True)
        kernel.run(0, -1, range(1), hypers, pool)

    return call


def measure_arrival() -> None:
    """Print how much longer a step takes if the norm is summed as gradients arrive."""
    elements = 25_000_000
    clipped, plain = minimum(arrival(elements, 1.0), arrival(elements, None), rounds=KERNEL_ROUNDS)
    print(f"arrival: {1e3 * clipped:.0f} ms with the norm, {clipped / plain:.2f} of without")


def measure_overlap() -> None:
    """Print how long a step takes, whose copies take 40 ms each."""
    params = bf16_params([(BUCKET_ELEMENTS,)] * BUCKETS)
    with optgen.offload("adamw", params, bucket_bytes=1 << 21, slots=4, threads=1) as optimizer:
        for param in params:
            param.grad = torch.zeros_like(param)
        optimizer.step()
        before = optimizer.report()
        rate = 2 * BUCKET_ELEMENTS / COPY_SECONDS
        with device.configured(to_host=rate, to_device=rate):
            (took,) = minimum(optimizer.step)
    transfer = BUCKETS * COPY_SECONDS
    longest = max(transfer, 1e-3 * before.kernel_ms)
    print(
        f"overlap: {1e3 * took:.0f} ms, {took / longest:.2f} of the longest of {1e3 * transfer:.0f}"
        f" ms of transfer and {before.kernel_ms:.0f} ms in the kernel"
    )


class Slow(nn.Module):
    """A layer whose forward pass takes as long as two copies."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(BUCKET_ELEMENTS, dtype=torch.bfloat16, device="sim"))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight[:8]


def measure_hidden() -> None:
    """Print how long a clipped step and the next forward pass take together."""
    model = nn.Sequential(*(Slow() for _ in range(BUCKETS)))
    params = list(model.parameters())
    x = torch.zeros(8, dtype=torch.bfloat16, device="sim")
    rate, compute = 2 * BUCKET_ELEMENTS / COPY_SECONDS, COPY_SECONDS

    def forward() -> None:
        with device.configured(to_host=rate, to_device=rate, compute=compute), torch.no_grad():
            model(x)
            torch.accelerator.synchronize()

    with optgen.offload(
        "adamw", params, module=model, clip_norm=1.0, bucket_bytes=1 << 21, slots=4, threads=1
    ) as optimizer:
        model(x).sum().backward()

        def step() -> None:
            for param in params:
                param.grad = torch.zeros_like(param)
            torch.accelerator.synchronize()
            device.configure(to_host=rate, to_device=rate)
            optimizer.step()

        def step_then_wait() -> None:
            step()
            optimizer.synchronize()

        def both() -> None:
            step()
            forward()

        step()
        optimizer.synchronize()
        step_alone, forward_alone, together = minimum(step_then_wait, forward, both)
    longest = max(step_alone, forward_alone)
    print(
        f"hidden: step {1e3 * step_alone:.0f} ms, forward pass {1e3 * forward_alone:.0f} ms, both "
        f"{1e3 * together:.0f} ms, {together / longest:.2f} of the longest"
    )


CASES = {
    "kernel": measure_kernel,
    "arrival": measure_arrival,
    "overlap": measure_overlap,
    "hidden": measure_hidden,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    device.load()
    for case in sys.argv[1:] or CASES:
        CASES[case]()
