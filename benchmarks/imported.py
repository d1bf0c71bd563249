"""Measure imported optimizers against the originals: a step on ResNet-50's tensors, on the CPU.

    python benchmarks/import_table.py timm.optim --specs DIR
    python benchmarks/imported.py timm.optim DIR [NAME ...] [--seconds 4]

Both classes get the same gradients, in turns. The figure is the ratio of the smallest times. Each
pair is measured in a fork of this process, so one class's memory does not slow the next.
"""

from __future__ import annotations

import argparse
import importlib
import math
import multiprocessing
import sys
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn

from optgen import jit
from optgen.bench.measure import Budget, compare
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


def _measure(original: Any, spec: Path, name: str, seconds: float, pipe: Connection) -> None:
    """Send the smallest milliseconds of a step of both classes."""
    warnings.filterwarnings("ignore")
    shapes = LISTS[name].shapes
    pair = {"theirs": Stepping(original, shapes), "ours": Stepping(jit.load(spec), shapes)}
    times = compare(pair, lambda: [torch.randn(s) for s in shapes], Budget(seconds))
    pipe.send([times[side]["min"] for side in pair])


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


def main() -> None:
    """Print the times of each class whose spec is in a folder, and the geometric mean."""
    parser = argparse.ArgumentParser()
    parser.add_argument("package")
    parser.add_argument("specs", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", default="resnet50", choices=LISTS)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    module = importlib.import_module(options.package)
    classes = {name.lower(): each for name, each in vars(module).items()}
    ratios: list[float] = []
    print(f"{options.list}, float32, {options.threads} thread(s); smallest ms of a step")
    for spec in sorted(options.specs.glob("*.py")):
        if options.names and spec.stem not in map(str.lower, options.names):
            continue
        times = pair_of(classes[spec.stem], spec, options.list, options.seconds)
        if times is None:
            print(f"{spec.stem:24} failed", flush=True)
            continue
        ratios.append(times[0] / times[1])
        line = f"{spec.stem:24} {times[0]:9.2f} {times[1]:9.2f}  {ratios[-1]:5.2f} times faster"
        print(line, flush=True)
    mean = math.exp(sum(map(math.log, ratios)) / max(1, len(ratios)))
    print(f"{len(ratios)} classes, geometric mean {mean:.2f}")


if __name__ == "__main__":
    main()
