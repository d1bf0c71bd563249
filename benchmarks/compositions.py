"""Time a step with clipping, averaging and zeroing of gradients, composed or by torch's helpers.

    python benchmarks/compositions.py            # 25 million parameters in float32

The variants take turns in one process, after a warm-up. Each line gives the minimum and the median
time, and the minimum divided by that of the plain step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from optgen import compose, modifiers, optim

SHAPES = ((5000, 500),) * 10
_DECAY = 0.999
WARM_UP = 2  # untimed rounds


def parameters() -> list[Tensor]:
    """Return parameters with gradients, the same ones in every call."""
    generator = torch.Generator().manual_seed(1)
    params = [torch.randn(shape, generator=generator) for shape in SHAPES]
    for param in params:
        param.grad = 1e-3 * torch.randn(param.shape, generator=generator)
    return params


def torch_step() -> Callable[[], None]:
    """Return the step with torch's fused AdamW and its helpers."""
    params = parameters()
    grads = [param.grad for param in params if param.grad is not None]
    optimizer = torch.optim.AdamW(params, fused=True)
    averages = [param.clone() for param in params]

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        torch._foreach_lerp_(averages, params, 1 - _DECAY)
        torch._foreach_zero_(grads)

    return step


def variants() -> dict[str, Callable[[], object]]:
    """Return the steps to time, the plain one first."""
    clip, average = modifiers.clip_norm(1.0), modifiers.ema(_DECAY)
    with_all = compose(optim.AdamW, clip, average, modifiers.zero_grad)
    return {
        "AdamW": optim.AdamW(parameters()).step,
        "AdamW + clip": compose(optim.AdamW, clip)(parameters()).step,
        "AdamW + clip + ema": compose(optim.AdamW, clip, average)(parameters()).step,
        "AdamW + clip + ema + zero": with_all(parameters()).step,
        "torch's fused AdamW": torch.optim.AdamW(parameters(), fused=True).step,
        "torch's, with clip, ema, zero": torch_step(),
    }


def main() -> None:
    """Time the variants and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    steps = variants()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.rounds + WARM_UP):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - started)
    plain = min(times["AdamW"][WARM_UP:])
    for name, seconds in times.items():
        least, median = min(seconds[WARM_UP:]), statistics.median(seconds[WARM_UP:])
        print(f"{name:30} {1e3 * least:7.1f} ms {1e3 * median:7.1f} ms  x{least / plain:.2f}")


if __name__ == "__main__":
    main()
