"""Measure an iteration of LBFGS against torch's: `python benchmarks/lbfgs.py [--threads N]`.

Both classes minimize the same separable quadratic with a full history. The closure takes two passes
over memory. Steps alternate between the classes. The table shows the fastest iteration and the
median of each, in microseconds of wall time, or with `--cpu` of the calling thread's CPU time.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

import optgen.optim
from optgen.bench.measure import Budget, compare

ITERATIONS = 20  # in a step


class Minimization:
    """Steps of a class on its own problem, with a full history."""

    def __init__(self, cls: Any, numel: int, history: int, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self._param = torch.nn.Parameter(torch.randn(numel, dtype=dtype))
        self._curvature = torch.linspace(0.01, 1, numel, dtype=dtype)
        self._gradient = self._param.grad = torch.empty_like(self._param)
        never_stop = {"max_eval": 100, "tolerance_grad": 0, "tolerance_change": -1}
        self._optimizer = cls(
            [self._param], lr=0.05, max_iter=ITERATIONS, history_size=history, **never_stop
        )
        for _ in range(history // ITERATIONS + 1):
            self.step()

    def set_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Ignore gradients, because the closure computes its own."""

    def step(self) -> None:
        self._optimizer.step(self._closure)

    def _closure(self) -> Tensor:
        torch.mul(self._curvature, self._param.detach(), out=self._gradient)
        return self._gradient[0]


def row(numel: int, history: int, dtype: torch.dtype, budget: Budget) -> str:
    """Return a line of the table."""
    minimizations = {
        label: Minimization(module.LBFGS, numel, history, dtype)
        for label, module in (("optgen", optgen.optim), ("torch", torch.optim))
    }
    figures = compare(minimizations, list, budget)  # list() returns no gradients
    (fast, median), (torch_fast, torch_median) = (
        [figures[label][key] / ITERATIONS * 1e3 for key in ("min", "median")]
        for label in minimizations
    )
    name = str(dtype).removeprefix("torch.")
    return (
        f"{name:8} {numel:9,} {history:4} {fast:9.0f} {median:9.0f} {torch_fast:9.0f} "
        f"{torch_median:9.0f} {torch_fast / fast:6.2f} {torch_median / median:6.2f}"
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
                print(row(numel, history, dtype, Budget(clock=clock)), flush=True)


if __name__ == "__main__":
    main()
