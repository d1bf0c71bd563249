"""Measure imported optimizers against the originals: a step on ResNet-50's tensors, on the CPU.

    python benchmarks/import_table.py timm.optim --specs DIR
    python benchmarks/imported.py timm.optim DIR [NAME ...] [--seconds 2]
        [--json benchmarks/results/imported.json] [--page docs/bring-your-own.md]

Both classes step in turns, with one thread. A step's time is the time that the CPU spends on it
(`time.process_time`), so other programs disturb it less. The figure is the ratio of the smallest
times. A class that takes matrices alone gets the list's tensors as matrices. Each pair is measured
in a fork of this process, so one class's memory does not slow the next. `--json` keeps the figures
in a file: what is not measured keeps its figures there. `--page` writes all of them into a page.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import multiprocessing
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn

from benchmarks.import_table import write_section
from optgen import jit
from optgen.bench.tensor_lists import LISTS


class Stepping:
    """An optimizer with parameters of its own."""

    def __init__(self, cls: Any, shapes: Sequence[tuple[int, ...]]) -> None:
        generator = torch.Generator().manual_seed(0)
        self._params = [nn.Parameter(torch.randn(s, generator=generator)) for s in shapes]
        self.step = cls(self._params).step

    def set_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Let further steps use these gradients."""
        for p, gradient in zip(self._params, gradients, strict=True):
            p.grad = gradient.clone()


def _taken(imported: Any, shapes: Sequence[tuple[int, ...]]) -> Sequence[tuple[int, ...]]:
    """Return the shapes that an imported class takes: all, as matrices, or the matrices alone."""
    flat = [(s[0], math.prod(s[1:])) if len(s) > 2 else s for s in shapes]
    matrices = [s for s in flat if len(s) == 2]
    for each in (shapes, flat):
        try:
            imported([nn.Parameter(torch.zeros(s)) for s in each])
        except ValueError:  # it requires a number of axes
            continue
        return each
    return matrices


MIN_ROUNDS = 5
"""The rounds of steps that are measured at least."""


def _measure(original: Any, spec: Path, name: str, seconds: float, pipe: Connection) -> None:
    """Send the smallest milliseconds of a step of both classes."""
    warnings.filterwarnings("ignore")
    imported = jit.load(spec)
    shapes = _taken(imported, LISTS[name].shapes)
    pair = [Stepping(original, shapes), Stepping(imported, shapes)]
    gradients = [torch.randn(s) for s in shapes]
    times: list[list[float]] = [[], []]
    began = time.process_time()
    while time.process_time() - began < seconds or len(times[0]) < MIN_ROUNDS + 2:
        for stepping, mine in zip(pair, times, strict=True):
            stepping.set_gradients(gradients)
            before = time.process_time()
            stepping.step()
            mine.append(1e3 * (time.process_time() - before))
    pipe.send([min(mine[2:]) for mine in times])


def pair_of(original: Any, spec: Path, name: str, seconds: float) -> list[float] | None:
    """Return the smallest milliseconds of a step of both classes; None if the measurement fails."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=_measure, args=(original, spec, name, seconds, sender))
    child.start()
    sender.close()
    try:
        return list(receiver.recv())
    except EOFError:
        return None
    finally:
        child.join()


def section(figures: Mapping[str, Sequence[float]]) -> str:
    """Return a package's figures as lines of a page: the mean, and the ratios from the largest."""
    ratios = {name: theirs / ours for name, (theirs, ours) in figures.items()}
    mean = math.exp(sum(map(math.log, ratios.values())) / max(1, len(ratios)))
    several = sum(ratio >= 3 for ratio in ratios.values())
    words = [f"{n} {ratios[n]:.1f}" for n in sorted(ratios, key=lambda n: -ratios[n])]
    return (
        f"{len(ratios)} classes: the imported one is {mean:.1f} times faster (geometric mean), "
        f"{several} of them at least 3 times.\n\n{', '.join(words)}."
    )


def main() -> None:
    """Print the times of each class whose spec is in a folder, and the geometric mean."""
    parser = argparse.ArgumentParser()
    parser.add_argument("package")
    parser.add_argument("specs", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", default="resnet50", choices=LISTS)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    module = importlib.import_module(options.package)
    classes = {name.lower(): (name, each) for name, each in vars(module).items()}
    kept = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    figures: dict[str, list[float]] = kept.setdefault(options.package, {})
    print(f"{options.list}, float32, one thread; smallest ms of a step on the CPU")
    for spec in sorted(options.specs.glob("*.py")):
        if options.names and spec.stem not in map(str.lower, options.names):
            continue
        name, original = classes[spec.stem]
        times = pair_of(original, spec, options.list, options.seconds)
        if times is None:
            print(f"{name:24} failed", flush=True)
            continue
        figures[name] = [round(x, 3) for x in times]
        print(f"{name:24} {times[0]:9.2f} {times[1]:9.2f}  {times[0] / times[1]:5.2f}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    print(section(figures))
    if options.page:
        mark = f"{options.package}, by benchmarks/imported.py"
        write_section(options.page, mark, section(figures))


if __name__ == "__main__":
    main()
