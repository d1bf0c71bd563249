"""Time a step with a gradient scaler: torch's scaler, and optgen.amp.GradScaler.

    python benchmarks/grad_scaler.py            # 25 million parameters in float32

The step is that of AdamW with `clip_norm` and `skip_nonfinite`. The variants take turns in one
process, after a warm-up. Each line gives the minimum and the median time, and their ratios to the
times of the step without a scaler. The scale is 1, so that gradients stay the same.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from optgen import amp, compose, modifiers, optim

WARM_UP = 2  # untimed rounds
ClippedAdamW = compose(optim.AdamW, modifiers.clip_norm(1.0), modifiers.skip_nonfinite)


def parameters(shapes: list[tuple[int, ...]]) -> list[Tensor]:
    """Return parameters with gradients, the same ones in every call."""
    generator = torch.Generator().manual_seed(1)
    params = [torch.randn(shape, generator=generator) for shape in shapes]
    for param in params:
        param.grad = 1e-3 * torch.randn(param.shape, generator=generator)
    return params


def scaled_step(
    cls: type[torch.amp.GradScaler], params: list[Tensor], fused: bool | None
) -> Callable[[], None]:
    """Return a function that takes a step with a scaler."""
    optimizer, scaler = ClippedAdamW(params, fused=fused), cls("cpu", init_scale=1.0)
    scaler.scale(torch.zeros(()))  # creates the scale

    def step() -> None:
        scaler.step(optimizer)
        scaler.update(1.0)

    return step


def variants(shapes: list[tuple[int, ...]]) -> dict[str, Callable[[], object]]:
    """Return the steps to time, the one without a scaler first."""
    return {
        "no scaler": ClippedAdamW(parameters(shapes)).step,
        "torch's scaler": scaled_step(torch.amp.GradScaler, parameters(shapes), None),
        "torch's scaler, fused=True": scaled_step(torch.amp.GradScaler, parameters(shapes), True),
        "optgen's scaler": scaled_step(amp.GradScaler, parameters(shapes), None),
    }


def main() -> None:
    """Time the variants and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--small", action="store_true", help="take 2,000 parameters of 256 elements"
    )
    options = parser.parse_args()
    steps = variants([(256,)] * 2000 if options.small else [(5000, 500)] * 10)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.rounds + WARM_UP):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - started)
    minimum = {name: min(seconds[WARM_UP:]) for name, seconds in times.items()}
    median = {name: statistics.median(seconds[WARM_UP:]) for name, seconds in times.items()}
    for name in times:
        print(
            f"{name:28} {1e3 * minimum[name]:7.2f} ms {1e3 * median[name]:7.2f} ms  "
            f"x{minimum[name] / minimum['no scaler']:.2f} x{median[name] / median['no scaler']:.2f}"
        )


if __name__ == "__main__":
    main()
