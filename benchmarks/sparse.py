"""Measure sparse gradients on the CPU against torch's classes, in one process.

python benchmarks/sparse.py [SECONDS]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

import optgen.optim
from optgen.bench.measure import Budget, StepTimes, compare

TABLES = {  # rows and width of a table, values (vectors of that width) in a gradient
    "1e6 x 64, 8192 values": (10**6, 64, 8192),
    "1e6 x 8, 8192 values": (10**6, 8, 8192),
    "1e5 x 512, 2048 values": (10**5, 512, 2048),
    "1e4 x 64, 65536 values": (10**4, 64, 65536),
    "1e3 x 64, 256 values": (1000, 64, 256),
}
NAMES = ("SparseAdam", "Adagrad", "SGD")
LOWERINGS: dict[str, dict[str, Any]] = {"fused C++": {}, "for-loop": {"foreach": False}}


class Table:
    """An optimizer with its own embedding table."""

    def __init__(self, make: Callable[[Any], Any], rows: int, width: int) -> None:
        self._table = torch.nn.Parameter(torch.zeros(rows, width))
        self._optimizer = make([self._table])

    def set_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Let further steps use a copy of the gradient, the only element of the list."""
        self._table.grad = gradients[0].clone()

    def step(self) -> None:
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            self._optimizer.step()


def gradient(rows: int, width: int, count: int) -> Tensor:
    """Return the gradient of a batch of random rows. Low indices are more frequent, as in text."""
    indices = (torch.rand(1, count) ** 3 * rows).long()
    values = torch.randn(count, width)
    return torch.sparse_coo_tensor(indices, values, (rows, width), check_invariants=True)


def measure(name: str, rows: int, width: int, count: int, seconds: float) -> dict[str, StepTimes]:
    """Return the milliseconds of a step of each variant. Every round has a new batch."""
    constructors: dict[str, Callable[[Any], Any]] = {
        "torch": partial(getattr(torch.optim, name), lr=1e-3),
        **{
            label: partial(getattr(optgen.optim, name), lr=1e-3, **options)
            for label, options in LOWERINGS.items()
        },
    }
    tables = {label: Table(make, rows, width) for label, make in constructors.items()}
    return compare(tables, lambda: [gradient(rows, width, count)], Budget(seconds))


def main(seconds: float) -> None:
    """Print a table: torch's milliseconds, and their ratio to ours.

    Figures are medians, and in brackets minima, which a busy machine disturbs less.
    """
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} thread{'s' * (threads > 1)}, float32\n")
    print(f"| class | table | torch, ms | {' | '.join(LOWERINGS)} |")
    print(f"|---|---|---|{'---|' * len(LOWERINGS)}")
    for name in NAMES:
        for label, sizes in TABLES.items():
            by_title = measure(name, *sizes, seconds)
            theirs, ours = by_title["torch"], [by_title[label] for label in LOWERINGS]
            ratios = (
                f"x{theirs['median'] / each['median']:.1f} (x{theirs['min'] / each['min']:.1f})"
                for each in ours
            )
            times = f"{theirs['median']:.2f} ({theirs['min']:.2f})"
            print(f"| {name} | {label} | {times} | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0)
