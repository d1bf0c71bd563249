"""Sparse gradients on the CPU: ratios to torch's classes, in one process, round by round.

python benchmarks/sparse.py [ROUNDS]
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import optgen.optim

TABLES = {  # rows x width, values of a gradient
    "1e6 x 64, 8192 values": (10**6, 64, 8192),
    "1e6 x 8, 8192 values": (10**6, 8, 8192),
    "1e5 x 512, 2048 values": (10**5, 512, 2048),
    "1e4 x 64, 65536 values": (10**4, 64, 65536),
    "1e3 x 64, 256 values": (1000, 64, 256),
}
NAMES = ("SparseAdam", "Adagrad", "SGD")
WAYS: dict[str, dict[str, Any]] = {"fused C++": {}, "for-loop": {"foreach": False}}


def gradient(rows: int, width: int, count: int) -> Tensor:
    """A batch whose rows are drawn with replacement, the first ones more often, as words are."""
    drawn = (torch.rand(1, count) ** 3 * rows).long()
    values = torch.randn(count, width)
    return torch.sparse_coo_tensor(drawn, values, (rows, width), check_invariants=True)


def measured(name: str, rows: int, width: int, count: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a step by each way, round by round."""
    makers: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "torch": lambda params: getattr(torch.optim, name)(params, lr=1e-3),
        **{
            label: lambda params, way=way: getattr(optgen.optim, name)(params, lr=1e-3, **way)
            for label, way in WAYS.items()
        },
    }
    tables = {label: torch.nn.Parameter(torch.zeros(rows, width)) for label in makers}
    optimizers = {label: make([tables[label]]) for label, make in makers.items()}
    times: dict[str, list[float]] = {label: [] for label in makers}
    for number in range(rounds + 3):
        grad, order = gradient(rows, width, count), list(makers)
        random.shuffle(order)
        for label in order:
            tables[label].grad = grad.clone()
            with torch.sparse.check_sparse_tensor_invariants(enable=False):
                start = time.perf_counter()
                optimizers[label].step()
                taken = time.perf_counter() - start
            if number >= 3:
                times[label].append(1e3 * taken)
    return times


def main(rounds: int) -> None:
    """Print a table: torch's milliseconds, and how many times faster ours are.

    Of medians, and in brackets of minima, which a busy machine disturbs less.
    """
    random.seed(0)
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} thread{'s' * (threads > 1)}, float32\n")
    print(f"| class | table | torch, ms | {' | '.join(WAYS)} |\n|---|---|---|{'---|' * len(WAYS)}")
    for name in NAMES:
        for label, (rows, width, count) in TABLES.items():
            found = measured(name, rows, width, count, rounds)
            low, middle = (
                {way: best(times) for way, times in found.items()}
                for best in (min, statistics.median)
            )
            ratios = [
                f"x{middle['torch'] / middle[way]:.1f} (x{low['torch'] / low[way]:.1f})"
                for way in WAYS
            ]
            torchs = f"{middle['torch']:.2f} ({low['torch']:.2f})"
            print(f"| {name} | {label} | {torchs} | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
