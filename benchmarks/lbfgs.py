"""An iteration of LBFGS against torch's: `python benchmarks/lbfgs.py [--threads N]`.

Both classes minimize the same separable quadratic, whose closure costs two trips through memory,
with a full history. Steps alternate between them; the table shows the fastest iteration and the
median of each, in microseconds of wall time, or with `--cpu` of the calling thread's own time.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

import optgen.optim

ITERATIONS = 20  # in a step


def minimization(cls: Any, numel: int, history: int, dtype: torch.dtype) -> Callable[[], None]:
    """One step, with the history full."""
    torch.manual_seed(0)
    param = torch.nn.Parameter(torch.randn(numel, dtype=dtype))
    curvature = torch.linspace(0.01, 1, numel, dtype=dtype)
    param.grad = gradient = torch.empty_like(param)
    endless = {"max_eval": 100, "tolerance_grad": 0, "tolerance_change": -1}
    optimizer = cls([param], lr=0.05, max_iter=ITERATIONS, history_size=history, **endless)

    def closure() -> torch.Tensor:
        torch.mul(curvature, param.detach(), out=gradient)
        return gradient[0]

    for _ in range(history // ITERATIONS + 1):
        optimizer.step(closure)
    return lambda: optimizer.step(closure)


def compare(numel: int, history: int, dtype: torch.dtype, clock: Callable[[], float]) -> str:
    both = [
        minimization(cls, numel, history, dtype) for cls in (optgen.optim.LBFGS, torch.optim.LBFGS)
    ]
    times: list[list[float]] = [[], []]
    for _ in range(30 if numel < 100_000 else 8):
        for step, taken in zip(both, times, strict=True):
            begin = clock()
            step()
            taken.append((clock() - begin) / ITERATIONS * 1e6)
    (fast, usual), (torch_fast, torch_usual) = ((min(taken), median(taken)) for taken in times)
    name = str(dtype).removeprefix("torch.")
    return (
        f"{name:8} {numel:9,} {history:4} {fast:9.0f} {usual:9.0f} {torch_fast:9.0f} "
        f"{torch_usual:9.0f} {torch_fast / fast:6.2f} {torch_usual / usual:6.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="for a machine that is not idle")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.thread_time if options.cpu else time.perf_counter
    print("dtype      numel  pairs   optgen    median     torch    median  ratio median")
    for dtype in (torch.float32, torch.float64):
        for numel in (10_000, 1_000_000):
            for history in (10, 100):
                print(compare(numel, history, dtype, clock), flush=True)


if __name__ == "__main__":
    main()
