"""Time a step with quantized states, and a step with states in float32.

    python benchmarks/quantized.py            # 25 million parameters in float32
    python benchmarks/quantized.py --dtypes fp8 --threads 1
    python benchmarks/quantized.py --small    # 20 tensors of 4,096 elements
    python benchmarks/quantized.py --lowering foreach

Both steps run in the same lowering, "fused" if no other is named. A step that has no fused lowering
raises an error, and each line ends with the lowering of the step. The two steps take turns in one
process, after a warm-up. Each line gives the minimum and the median times, their ratios, and the
ratio of the bytes of the states. With one thread, times are those of the process, without the times
in which other processes run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from optgen import compose, explain, modifiers, optim
from optgen.contract.quantization import QUANTIZATIONS

LARGE = ((1000, 1000),) * 25
SMALL = ((64, 64),) * 20
WARM_UP = 2  # untimed rounds
LOWERINGS: dict[str, dict[str, bool]] = {"fused": {"fused": True}, "foreach": {"foreach": True}}
"""Arguments of the constructor for each lowering. `fused=True` raises where it cannot step."""


def parameters(shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Return parameters with gradients, the same ones in every call."""
    generator = torch.Generator().manual_seed(1)
    params = [torch.randn(shape, generator=generator) for shape in shapes]
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


def compare(plain: Any, quantized: Any, rounds: int) -> tuple[list[float], list[float]]:
    """Let both optimizers take turns; return the milliseconds of their steps."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + WARM_UP):
        for optimizer, milliseconds in zip((plain, quantized), times, strict=True):
            started = clock()
            optimizer.step()
            milliseconds.append(1e3 * (clock() - started))
    return times[0][WARM_UP:], times[1][WARM_UP:]


def report(name: str, dtype: str, plain: Any, quantized: Any, rounds: int) -> str:
    """Time both optimizers, and return a line."""
    times = compare(plain, quantized, rounds)
    minimum, median = [min(each) for each in times], [statistics.median(each) for each in times]
    return (
        f"{name:13} float32 {minimum[0]:7.3f} ms {median[0]:7.3f} ms, {dtype} {minimum[1]:7.3f} ms "
        f"{median[1]:7.3f} ms: x{minimum[1] / minimum[0]:.2f} x{median[1] / median[0]:.2f}, "
        f"bytes x{state_bytes(quantized) / state_bytes(plain):.3f}"
    )


def main() -> None:
    """Time the optimizers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="AdamW,clipped AdamW,Lion,SGD,Muon")
    parser.add_argument("--dtypes", default=",".join(QUANTIZATIONS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--lowering", choices=LOWERINGS, default="fused")
    parser.add_argument("--small", action="store_true", help="20 tensors of 4,096 elements")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    bases: dict[str, tuple[Any, int, dict[str, Any]]] = {
        "AdamW": (optim.AdamW, options.rounds, {}),
        "clipped AdamW": (compose(optim.AdamW, modifiers.clip_norm(1.0)), options.rounds, {}),
        "Lion": (optim.Lion, options.rounds, {}),
        "SGD": (optim.SGD, options.rounds, {"momentum": 0.9}),
        "Muon": (optim.Muon, 2, {}),
    }
    flags = LOWERINGS[options.lowering]
    for name in options.only.split(","):
        base, rounds, arguments = bases[name]
        for dtype in options.dtypes.split(","):
            plain, quantized = (
                cls(parameters(SMALL if options.small else LARGE), **arguments | flags)
                for cls in (compose(base), compose(base, modifiers.quantized(dtype)))
            )
            line = report(name, dtype, plain, quantized, rounds)
            print(f"{line}, {explain(quantized)}", flush=True)


if __name__ == "__main__":
    main()
