"""Time steps of AdamW with bfloat16 parameters: masters, stochastic rounding, compensation.

    python benchmarks/low_precision.py            # 25 million parameters, then 2,000 of 256

The variants take turns in one process, after a warm-up. Each line gives the minimum and the median
time, the ratio of the minimum to torch's step with casts, and the fraction of the memory limit: the
minimum time of a C++ loop over the same tensors, divided by that of the step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from optgen import compose, modifiers, optim
from optgen.bench.roofline import Access, Roofline, Traffic

WARM_UP = 2  # untimed rounds
LISTS = {"25 million": [(5000, 500)] * 10, "2,000 of 256": [(16, 16)] * 2000}
VARIANTS: dict[str, tuple[Any, ...]] = {
    "masters": (modifiers.master, modifiers.state_dtype("float32")),
    "stochastic rounding": (modifiers.stochastic_rounding,),
    "compensated (kahan)": (modifiers.kahan,),
}

Shapes = Sequence[tuple[int, ...]]


def parameters(shapes: Shapes) -> list[Tensor]:
    """Return parameters in bfloat16 with gradients, the same ones in every call."""
    generator = torch.Generator().manual_seed(1)
    params = [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]
    for param in params:
        param.grad = (1e-3 * torch.randn(param.shape, generator=generator)).bfloat16()
    return params


def torch_step(shapes: Shapes) -> Callable[[], None]:
    """Return a step of torch's fused AdamW on float32 masters, casts included."""
    params = parameters(shapes)
    masters = [param.float() for param in params]
    grads = [torch.zeros_like(master) for master in masters]
    for master, grad in zip(masters, grads, strict=True):
        master.grad = grad
    optimizer = torch.optim.AdamW(masters, fused=True)

    def step() -> None:
        torch._foreach_copy_(grads, [p.grad for p in params if p.grad is not None])
        optimizer.step()
        torch._foreach_copy_(params, masters)

    return step


def memory_limit_step(optimizer: Any) -> Callable[[], None]:
    """Return a loop that reads and writes the same tensors as a step. The states must exist."""
    (param, *_) = optimizer.param_groups[0]["params"]
    states = [key for key in optimizer.state[param] if key != "step"]
    accesses = [Access("param", stored=True), Access("grad"), *(Access(s, True) for s in states)]
    loop = Roofline([Traffic((tuple(accesses),))], optimizer)
    return loop.step


def measure(shapes: Shapes, rounds: int) -> None:
    """Time all variants on parameters of these shapes, and print a table."""
    steps: dict[str, Callable[[], object]] = {}
    for name, chain in VARIANTS.items():
        optimizer = compose(optim.AdamW, *chain)(parameters(shapes))
        optimizer.step()
        steps |= {name: optimizer.step, f"limit of {name}": memory_limit_step(optimizer)}
    steps["torch"] = torch_step(shapes)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + WARM_UP):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            times[name].append(1e3 * (time.perf_counter() - started))
    minimum = {name: min(milliseconds[WARM_UP:]) for name, milliseconds in times.items()}
    for name in (*VARIANTS, "torch"):
        limit_time = minimum.get(f"limit of {name}")
        fraction = f", {limit_time / minimum[name]:.2f} of the limit" if limit_time else ""
        median = statistics.median(times[name][WARM_UP:])
        ratio = minimum[name] / minimum["torch"]
        print(f"  {name:20} {minimum[name]:7.2f} ms {median:7.2f} ms  x{ratio:.2f}{fraction}")


def main() -> None:
    """Measure both lists of parameters."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    for name, shapes in LISTS.items():
        print(f"{name}, {torch.get_num_threads()} threads")
        measure(shapes, options.rounds)


if __name__ == "__main__":
    main()
