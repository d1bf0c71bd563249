"""Train a small network on scikit-learn's digits with generated optimizers, in every lowering.

    python examples/demo.py [--epochs 20] [--plot demo.png]

Prints loss, accuracy and time per step beside torch.optim's, and draws them. The Triton lowering
runs in Triton's interpreter, which is slow and must be asked for before kernels are defined: it
takes its few steps in a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.nn import functional

import optgen
import optgen.optim

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.05, "momentum": 0.9, "nesterov": True},
    "Adam": {"lr": 1e-3, "amsgrad": True},
    "AdamW": {"lr": 1e-3},
    "RMSprop": {"lr": 1e-3},
    "RAdam": {"lr": 2e-3},
    "NAdam": {"lr": 1e-3},
}
LOWERINGS = ("forloop", "foreach", "fused_cpu")
INTERPRETED_STEPS = 5
BATCH = 128


@dataclass(frozen=True)
class Run:
    """One training: the loss after every epoch (or step), the final accuracy, median step time."""

    optimizer: str
    how: str
    losses: list[float]
    accuracy: float
    ms: float


@dataclass(frozen=True)
class Digits:
    """1,797 images of 8 × 8, every fifth of them kept for the test."""

    train: torch.Tensor
    train_labels: torch.Tensor
    test: torch.Tensor
    test_labels: torch.Tensor

    @classmethod
    def load(cls) -> Digits:
        """Read them from scikit-learn, scaled to 0 … 1."""
        images, labels = load_digits(return_X_y=True)
        x = torch.from_numpy(images).float() / 16
        y = torch.from_numpy(labels).long()
        held_out = torch.arange(len(y)) % 5 == 0
        return cls(x[~held_out], y[~held_out], x[held_out], y[held_out])

    def batches(self, epochs: int) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
        """One epoch after the other, in the same order for everyone."""
        generator = torch.Generator().manual_seed(0)
        for _ in range(epochs):
            order = torch.randperm(len(self.train), generator=generator)
            yield [(self.train[i], self.train_labels[i]) for i in order.split(BATCH)]


def network() -> torch.nn.Module:
    """The same network, with the same weights, every time."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 10),
    )


def train(digits: Digits, name: str, how: str, epochs: int, steps: int | None = None) -> Run:
    """Train with torch's optimizer or with ours in one lowering; at most `steps` in each epoch."""
    model = network()
    theirs = how.startswith("torch")
    options = OPTIMIZERS[name] | ({"fused": True} if how == "torch fused" else {})
    cls = getattr(torch.optim if theirs else optgen.optim, name)
    optimizer = cls(model.parameters(), **options)
    times: list[float] = []
    losses: list[float] = []
    with contextlib.nullcontext() if theirs else optgen.use_lowering(how):
        for batches in digits.batches(epochs):
            for images, labels in batches[:steps]:
                optimizer.zero_grad()
                functional.cross_entropy(model(images), labels).backward()
                start = time.perf_counter()
                optimizer.step()
                times.append(time.perf_counter() - start)
            losses.append(loss(model, digits))
    with torch.no_grad():
        right = model(digits.test).argmax(1) == digits.test_labels
    return Run(name, how, losses, right.float().mean().item(), statistics.median(times) * 1e3)


def loss(model: torch.nn.Module, digits: Digits) -> float:
    """The loss over all training images."""
    with torch.no_grad():
        return functional.cross_entropy(model(digits.train), digits.train_labels).item()


def train_all(digits: Digits, epochs: int) -> list[Run]:
    """Every optimizer in every way this machine knows, a line of the table as each is done."""
    print(f"{'optimizer':<10} {'lowering':<13} {'loss':>9} {'accuracy':>9} {'ms/step':>8}  speed")
    runs: list[Run] = []
    for name in OPTIMIZERS:
        fused = ["torch fused"] if name in ("SGD", "Adam", "AdamW") else []
        for how in ("torch", *fused, *LOWERINGS):
            try:
                runs.append(train(digits, name, how, epochs))
            except RuntimeError as error:  # this machine has no compiler, for one
                print(f"{name:<10} {how:<13} not here: {error}", flush=True)
                continue
            print_row(runs[-1], next(r for r in runs if r.optimizer == name))
    return runs


def print_row(run: Run, torch_run: Run) -> None:
    """One line: what was reached, and how fast beside torch's default."""
    print(
        f"{run.optimizer:<10} {run.how:<13} {run.losses[-1]:9.5f} {run.accuracy:9.1%} "
        f"{run.ms:8.3f}  {torch_run.ms / run.ms:.1f}x",
        flush=True,
    )


def train_interpreted(digits: Digits) -> None:
    """A few steps of the Triton kernels in a process that interprets them, beside torch's."""
    print(f"\nTriton, interpreted: loss after {INTERPRETED_STEPS} steps")
    command = [sys.executable, __file__, "--interpreted"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            name, found = json.loads(line)
            wanted = train(digits, name, "torch", 1, INTERPRETED_STEPS).losses[-1]
            print(f"{name:<10} fused_triton  {found:9.5f}   torch {wanted:9.5f}", flush=True)
    if process.returncode:
        raise SystemExit(f"the interpreter's process ended with {process.returncode}")


def interpret() -> None:
    """What the interpreter's process does: one line of JSON for each optimizer."""
    digits = Digits.load()
    for name in OPTIMIZERS:
        run = train(digits, name, "fused_triton", 1, INTERPRETED_STEPS)
        print(json.dumps([name, run.losses[-1]]), flush=True)


def draw(runs: list[Run], path: Path) -> None:
    """The losses of every training, ours over torch's, and the time per step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    ways = list(dict.fromkeys(run.how for run in runs))
    for i, name in enumerate(OPTIMIZERS):
        curves = {run.how: run.losses for run in runs if run.optimizer == name}
        left.plot(curves["torch"], color=f"C{i}", linewidth=5, alpha=0.25)
        left.plot(curves.get("fused_cpu", curves["forloop"]), color=f"C{i}", label=name)
    left.set(xlabel="epoch", ylabel="training loss", yscale="log")
    left.legend(title="optgen; torch.optim wide and pale", ncols=2)
    width = 0.8 / len(ways)
    for j, how in enumerate(ways):
        bars = {run.optimizer: run.ms for run in runs if run.how == how}
        places = [i + j * width for i, name in enumerate(OPTIMIZERS) if name in bars]
        right.bar(places, list(bars.values()), width, label=how)
    middle = [i + 0.4 - width / 2 for i in range(len(OPTIMIZERS))]
    right.set_xticks(middle, list(OPTIMIZERS))
    right.set(ylabel="ms per optimizer step (median)")
    right.legend()
    figure.savefig(path, dpi=110)
    print(f"\nplot: {path}")


def main() -> None:
    """Train, print, draw."""
    parser = argparse.ArgumentParser(description="Train on digits with generated optimizers.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--plot", type=Path, default=Path("demo.png"))
    parser.add_argument("--interpreted", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.interpreted:
        interpret()
        return
    digits = Digits.load()
    runs = train_all(digits, arguments.epochs)
    train_interpreted(digits)
    draw(runs, arguments.plot)


if __name__ == "__main__":
    main()
