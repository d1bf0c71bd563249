"""Time a step with quantized states, and a step with states in float32.

    python benchmarks/quantized.py            # 25 million parameters in float32
    python benchmarks/quantized.py --dtypes fp8 --threads 1

The two steps take turns in one process, after a warm-up. Each line gives the minimum and the median
times, their ratios, and the ratio of the bytes of the states. With one thread, times are those of
the process, without the times in which other processes run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from torch import Tensor

from optgen import compose, explain, modifiers, optim
from optgen.contract.quantization import QUANTIZATIONS

SHAPES = ((1000, 1000),) * 25
WARM_UP = 2  # untimed rounds


def parameters() -> list[Tensor]:
    """Return parameters with gradients, the same ones in every call."""
    generator = torch.Generator().manual_seed(1)
    params = [torch.randn(shape, generator=generator) for shape in SHAPES]
    for param in params:
        param.grad = 1e-3 * torch.randn(param.shape, generator=generator)
    return params


def state_bytes(optimizer: Any) -> int:
    """Return the bytes of memory of all states but step counts."""
    states = (state.items() for state in optimizer.state.values())
    return sum(
        value.untyped_storage().nbytes()
        for items in states
        for key, value in items
        if key != "step"
    )


def compare(name: str, base: Any, dtype: str, rounds: int, **options: Any) -> None:
    """Time both optimizers, and print a line."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    plain = compose(base)(parameters(), **options)
    quantized = compose(base, modifiers.quantized(dtype))(parameters(), **options)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + WARM_UP):
        for optimizer, milliseconds in zip((plain, quantized), times, strict=True):
            started = clock()
            optimizer.step()
            milliseconds.append(1e3 * (clock() - started))
    minimum = [min(milliseconds[WARM_UP:]) for milliseconds in times]
    median = [statistics.median(milliseconds[WARM_UP:]) for milliseconds in times]
    print(
        f"{name:13} float32 {minimum[0]:7.1f} ms {median[0]:7.1f} ms, {dtype} {minimum[1]:7.1f} ms "
        f"{median[1]:7.1f} ms: x{minimum[1] / minimum[0]:.2f} x{median[1] / median[0]:.2f}, "
        f"bytes x{state_bytes(quantized) / state_bytes(plain):.3f}, {explain(quantized)}"
    )


def main() -> None:
    """Time the optimizers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="AdamW,clipped AdamW,Lion,SGD,Muon")
    parser.add_argument("--dtypes", default=",".join(QUANTIZATIONS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    bases: dict[str, tuple[Any, int, dict[str, Any]]] = {
        "AdamW": (optim.AdamW, options.rounds, {}),
        "clipped AdamW": (compose(optim.AdamW, modifiers.clip_norm(1.0)), options.rounds, {}),
        "Lion": (optim.Lion, options.rounds, {}),
        "SGD": (optim.SGD, options.rounds, {"momentum": 0.9}),
        "Muon": (optim.Muon, 2, {}),
    }
    for name in options.only.split(","):
        base, rounds, arguments = bases[name]
        for dtype in options.dtypes.split(","):
            compare(name, base, dtype, rounds, **arguments)


if __name__ == "__main__":
    main()
