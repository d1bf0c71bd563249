"""Measure memory and time of updates in the backward pass, against steps after it.

python benchmarks/in_backward.py [LAYERS] [WIDTH]

Each variant trains in a separate process. The figures are the bytes by which an iteration grows
the process at its peak, once parameters and state exist, and the time of an iteration.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn

from benchmarks.cpu_peak_memory import peak_growth
from optgen.bench import child_process
from optgen.keyed import FusedEmbeddingBag, UpdateInBackward
from optgen.optim import Adagrad, AdamW

MIB = 2**20
# Values: the `bucket_bytes` of an update in the backward pass; None for a step after it.
DENSE = {
    "after the backward pass": None,
    "in it, each parameter": 0,
    "in it, 32 MiB at once": 32 * MIB,
}
ROWS, LOOKUPS = 200_000, 4096
# Values: whether gradients are sparse; None for an update in the backward pass, not after it.
TABLES = {"dense gradient": False, "sparse gradient": True, "rows in backward": None}


def dense_iteration(variant: str, layers: int, width: int) -> tuple[Callable[[], None], int]:
    """Return a training iteration of a stack of layers, and the bytes of its parameters."""
    network = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    inputs, bucket_bytes = torch.randn(8, width), DENSE[variant]
    if bucket_bytes is None:
        optimizer = AdamW(network.parameters(), lr=1e-4)
        return _iteration(network, optimizer, inputs), _bytes(network)
    model = UpdateInBackward(network, AdamW, bucket_bytes=bucket_bytes, lr=1e-4)
    return _iteration(model, model.fused_optimizer, inputs), _bytes(network)


def table_iteration(variant: str, rows: int, width: int) -> tuple[Callable[[], None], int]:
    """Return a training iteration of an embedding table, and the bytes of the table."""
    inputs = torch.randint(rows, (LOOKUPS // 8, 8))
    if TABLES[variant] is None:
        options = {"lr": 1e-2}
        bag: Any = FusedEmbeddingBag(rows, width, optimizer_class=Adagrad, optimizer_kwargs=options)
        return _iteration(bag, bag.fused_optimizer, inputs), _bytes(bag)
    bag = nn.EmbeddingBag(rows, width, sparse=bool(TABLES[variant]))
    return _iteration(bag, Adagrad(bag.parameters(), lr=1e-2), inputs), _bytes(bag)


def measure(part: str, variant: str, size: int, width: int) -> dict[str, float]:
    """Return the bytes that an iteration adds at its peak, those of parameters, and times in ms."""
    torch.set_num_threads(1)
    iteration, weights = {"dense": dense_iteration, "table": table_iteration}[part](
        variant, size, width
    )
    for _ in range(3):
        iteration()
    growth = peak_growth(iteration, 2)
    times = []
    for _ in range(15):
        began = time.perf_counter()
        iteration()
        times.append(1e3 * (time.perf_counter() - began))
    return {"growth": growth, "weights": weights, "median": median(times), "minimum": min(times)}


def _iteration(model: Any, optimizer: Any, inputs: torch.Tensor) -> Callable[[], None]:
    def iteration() -> None:
        model(inputs).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return iteration


def _bytes(module: nn.Module) -> int:
    return sum(param.nbytes for param in module.parameters())


def lines(part: str, variants: dict[str, Any], size: int, width: int) -> Iterator[str]:
    """Yield a line of figures for each variant."""
    for variant in variants:
        request = {"part": part, "variant": variant, "size": size, "width": width}
        figures = child_process.ask("benchmarks.in_backward", request)
        growth, weights = figures["growth"] / MIB, figures["weights"] / MIB
        took = f"{figures['median']:.1f} ms ({figures['minimum']:.1f})"
        yield f"{part}, {variant}: {growth:.1f} MiB beside {weights:.1f} MiB of weights, {took}"


def main(layers: int, width: int) -> None:
    """Print a line for each variant."""
    print("1 thread, float32; growth at the peak of an iteration; time: median (minimum)")
    for line in lines("dense", DENSE, layers, width):
        print(line)
    for line in lines("table", TABLES, ROWS, 64):
        print(line)


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("{"):
        child_process.answer(measure)
    else:
        sizes = [int(argument) for argument in sys.argv[1:]]
        main(*sizes, *(24, 1024)[len(sizes) :])
