"""How fast is a step on this machine's CPU: ratios against torch.optim, in one process.

    python benchmarks/cpu.py [--threads N] [--rounds N] [--only AdamW RAdam] [--out FILE]

Each round steps every variant, in a new order, on tensors of its own: once with gradients at new
addresses and the caches full of the other variants' tensors ("cold"), then some times more
("repeated"). A figure is the median over the rounds, with the minimum beside it. First steps are
taken in processes of their own, with an empty cache of compiled libraries and with a full one.
Writes benchmarks/results/cpu-<threads>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import optgen.optim
from benchmarks.classes import CLASSES
from benchmarks.lists import LISTS

ROOT = Path(__file__).resolve().parents[1]
OPTIONS: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}}
TORCH: dict[str, dict[str, Any]] = {
    "torch for-loop": {"foreach": False},
    "torch foreach": {"foreach": True},
    "torch fused": {"fused": True},
}
MEASURED = ("one of 25,000,000", "one of 1,000,000", "2,000 of 256")
Figures = dict[str, dict[str, float]]

FIRST_STEP = """
import time, torch, optgen.optim
torch.set_num_threads({threads})
params = [torch.randn(n).requires_grad_() for n in {sizes}]
for param in params:
    param.grad = torch.randn_like(param)
begin = time.perf_counter()
optimizer = optgen.optim.{name}(params)
optimizer.step()
first = time.perf_counter() - begin
plain = []
for _ in range(20):
    begin = time.perf_counter()
    optimizer.step()
    plain.append(time.perf_counter() - begin)
print(first * 1e3, min(plain) * 1e3)
"""


def main() -> int:
    """Measure, print, write down."""
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    steps = {
        f"{name}, {title}": compare(name, LISTS[title], arguments.rounds)
        for title in MEASURED
        for name in arguments.only
    }
    firsts = {
        title: first_steps("AdamW", LISTS[title], arguments.threads)
        for title in ("2,000 of 256", "one of 1,000,000")
    }
    results = {"machine": machine(arguments.threads), "steps_ms": steps, "first_step_ms": firsts}
    path = arguments.out or ROOT / "benchmarks" / "results" / f"cpu-{arguments.threads}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(f"written to {path}")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="*", default=CLASSES, choices=CLASSES)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def compare(name: str, sizes: Sequence[int], rounds: int) -> Figures:
    """Milliseconds of a step of every variant, cold and repeated: median and minimum."""
    gradients = [torch.randn(size) for size in sizes]
    optimizers: dict[str, torch.optim.Optimizer] = {}
    for title, make in variants(name).items():
        try:
            optimizers[title] = make([torch.randn(size, requires_grad=True) for size in sizes])
        except TypeError:  # torch has no fused form of this one
            continue
    repeats = 2 if sum(sizes) > 10_000_000 else 10
    times: dict[str, list[list[float]]] = {title: [] for title in optimizers}
    for turn in range(rounds + 2):
        for title in random.sample(list(optimizers), len(optimizers)):
            milliseconds = timed(optimizers[title], gradients, repeats)
            if turn >= 2:  # the first two make state and find their tables
                times[title].append(milliseconds)
    figures = {title: summary(found) for title, found in times.items()}
    show(name, sizes, figures)
    return figures


def summary(rounds: list[list[float]]) -> dict[str, float]:
    """The figures of one variant from the times of its steps, round by round."""
    cold = [steps[0] for steps in rounds]
    repeated = [statistics.mean(steps[1:]) for steps in rounds]
    return {
        "cold": statistics.median(cold),
        "cold_min": min(cold),
        "repeated": statistics.median(repeated),
        "repeated_min": min(repeated),
    }


def variants(name: str) -> dict[str, Callable[[Any], torch.optim.Optimizer]]:
    """How to make each optimizer."""
    options = OPTIONS.get(name, {})
    ours, theirs = getattr(optgen.optim, name), getattr(torch.optim, name)
    made: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "optgen": lambda params: ours(params, **options),
        "optgen foreach": lambda params: ours(params, foreach=True, **options),
        "optgen for-loop": lambda params: ours(params, foreach=False, **options),
    }
    for title, flags in TORCH.items():
        made[title] = lambda params, flags=flags: theirs(params, **flags, **options)
    return made


def timed(
    optimizer: torch.optim.Optimizer, gradients: Sequence[torch.Tensor], repeats: int
) -> list[float]:
    """Milliseconds of each step, the first with gradients a backward pass might just have made."""
    params = optimizer.param_groups[0]["params"]
    for param, gradient in zip(params, gradients, strict=True):
        param.grad = gradient.clone()
    milliseconds = []
    for _ in range(1 + repeats):
        begin = time.perf_counter()
        optimizer.step()
        milliseconds.append((time.perf_counter() - begin) * 1e3)
    optimizer.zero_grad()
    return milliseconds


def first_steps(name: str, sizes: Sequence[int], threads: int) -> dict[str, dict[str, float]]:
    """Construct and step once, in new processes: with a cold and with a warm cache."""
    code = FIRST_STEP.format(threads=threads, sizes=sizes, name=name)
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "OPTGEN_CACHE_DIR": cache, "PYTHONPATH": str(ROOT)}
        for title in ("cold", "warm", "warm again"):
            done = subprocess.run(
                [sys.executable, "-c", code],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            first, plain = map(float, done.stdout.split())
            found[title] = {"first": first, "plain": plain}
            print(f"{name}, {len(sizes)} tensors, {title}: first {first:.1f} ms, {plain:.2f} plain")
    return found


def show(name: str, sizes: Sequence[int], figures: Figures) -> None:
    """A line a variant, with how many times longer than ours it takes."""
    print(f"\n{name}, {len(sizes):,} tensors, {sum(sizes):,} elements: ms, times ours")
    ours = figures["optgen"]
    for title, found in figures.items():
        cells = (f"{key} {found[key]:8.3f} x{found[key] / ours[key]:<6.2f}" for key in found)
        print(f"  {title:16} {'  '.join(cells)}", flush=True)


def machine(threads: int) -> dict[str, Any]:
    """What the figures depend on."""
    names = Path("/proc/cpuinfo")
    lines = names.read_text().splitlines() if names.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), "")
    return {
        "processor": model or platform.processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "load": os.getloadavg(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    sys.exit(main())
