"""Train a small network on scikit-learn's digits with generated optimizers, in every lowering.

    python examples/demo.py [--epochs 20] [--plot demo.png] [--only SGD AdamW ...]

Prints and draws loss, accuracy and time per step beside those of torch.optim. The Triton lowering
runs in Triton's interpreter. The interpreter is slow, and must be enabled before kernels are
defined. So the Triton lowering takes only a few steps, in a separate process.
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
    "Adamax": {"lr": 2e-3},
    "Adadelta": {"lr": 1.0},
    "Adafactor": {"lr": 0.05},
    "Adagrad": {"lr": 0.02},
    "ASGD": {"lr": 0.1},
    "Rprop": {"lr": 1e-3},
}
FUSED_IN_TORCH = ("SGD", "Adam", "AdamW", "Adagrad")
LOWERINGS = ("forloop", "foreach", "fused_cpu")
INTERPRETED_STEPS = 5  # of each optimizer, in Triton's interpreter
COLUMNS = 4  # of the plot
BATCH = 128


@dataclass(frozen=True)
class Digits:
    """1,797 images of 8 × 8 pixels; every fifth is for testing."""

    train: torch.Tensor
    train_labels: torch.Tensor
    test: torch.Tensor
    test_labels: torch.Tensor

    @classmethod
    def load(cls) -> Digits:
        """Read the images from scikit-learn, scaled to 0 … 1."""
        images, labels = load_digits(return_X_y=True)
        x = torch.from_numpy(images).float() / 16
        y = torch.from_numpy(labels).long()
        held_out = torch.arange(len(y)) % 5 == 0
        return cls(x[~held_out], y[~held_out], x[held_out], y[held_out])

    def batches(self, epochs: int) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
        """Yield the batches of each epoch, in the same order for every run."""
        generator = torch.Generator().manual_seed(0)
        for _ in range(epochs):
            order = torch.randperm(len(self.train), generator=generator)
            yield [(self.train[i], self.train_labels[i]) for i in order.split(BATCH)]


def network() -> torch.nn.Module:
    """Return the network, with the same initial weights every time."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.GELU(),
        torch.nn.Linear(256, 256),
        torch.nn.GELU(),
        torch.nn.Linear(256, 10),
    )


class Run:
    """One training with a network of its own; `how` is a lowering, "torch" or "torch fused"."""

    def __init__(self, name: str, how: str) -> None:
        self.name = name
        self.how = how
        self.losses: list[float] = []
        self.times: list[float] = []
        self.model = network()
        is_torch = how.startswith("torch")
        options = OPTIMIZERS[name] | ({"fused": True} if how == "torch fused" else {})
        cls = getattr(torch.optim if is_torch else optgen.optim, name)
        self.optimizer = cls(self.model.parameters(), **options)
        self.lowering = contextlib.nullcontext if is_torch else lambda: optgen.use_lowering(how)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Take a step; time only the optimizer's part."""
        self.optimizer.zero_grad()
        functional.cross_entropy(self.model(images), labels).backward()
        with self.lowering():
            start = time.perf_counter()
            self.optimizer.step()
            self.times.append(time.perf_counter() - start)

    @torch.no_grad()
    def loss(self, digits: Digits) -> float:
        """Return the loss over all training images."""
        return functional.cross_entropy(self.model(digits.train), digits.train_labels).item()

    @torch.no_grad()
    def accuracy(self, digits: Digits) -> float:
        """Return the fraction of test images that are recognised."""
        right = self.model(digits.test).argmax(1) == digits.test_labels
        return right.float().mean().item()

    @property
    def ms(self) -> float:
        """Milliseconds per optimizer step, median."""
        return statistics.median(self.times) * 1e3


def possible_runs(digits: Digits, name: str) -> list[Run]:
    """Return a run for each way that this machine can step an optimizer, after a trial step."""
    fused = ["torch fused"] if name in FUSED_IN_TORCH else []
    runs = []
    for how in ("torch", *fused, *LOWERINGS):
        try:
            Run(name, how).step(digits.train[:BATCH], digits.train_labels[:BATCH])
            runs.append(Run(name, how))
        except RuntimeError as error:  # for example, this machine has no compiler
            print(f"{name:<10} {how:<13} not here: {error}", flush=True)
    return runs


def train_all(digits: Digits, epochs: int) -> list[Run]:
    """Train every optimizer; its runs take turns, so that their times are comparable."""
    print(f"{'optimizer':<10} {'lowering':<13} {'loss':>9} {'accuracy':>9} {'ms/step':>8}  speed")
    done: list[Run] = []
    for name in OPTIMIZERS:
        runs = possible_runs(digits, name)
        for batches in digits.batches(epochs):
            for run in runs:
                for images, labels in batches:
                    run.step(images, labels)
                run.losses.append(run.loss(digits))
        for run in runs:
            print(
                f"{name:<10} {run.how:<13} {run.losses[-1]:9.5f} {run.accuracy(digits):9.1%} "
                f"{run.ms:8.3f}  {runs[0].ms / run.ms:.1f}x",
                flush=True,
            )
        done += runs
    return done


def few_steps(digits: Digits, name: str, how: str) -> float:
    """Return the loss after the first steps of a training."""
    run = Run(name, how)
    for images, labels in next(digits.batches(1))[:INTERPRETED_STEPS]:
        run.step(images, labels)
    return run.loss(digits)


def train_interpreted(digits: Digits) -> None:
    """Take a few steps with interpreted Triton kernels in a separate process, and print the losses.

    Print the losses of torch's optimizers after as many steps beside them.
    """
    print(f"\nTriton, interpreted: loss after {INTERPRETED_STEPS} steps")
    command = [sys.executable, __file__, "--interpreted", "--only", *OPTIMIZERS]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            name, loss = json.loads(line)
            torch_loss = few_steps(digits, name, "torch")
            print(f"{name:<10} fused_triton  {loss:9.5f}   torch {torch_loss:9.5f}", flush=True)
    if process.returncode:
        raise SystemExit(f"the interpreter's process ended with {process.returncode}")


def interpret() -> None:
    """Print the loss of each optimizer as a line of JSON. Runs in the interpreter's process."""
    digits = Digits.load()
    for name in OPTIMIZERS:
        print(json.dumps([name, few_steps(digits, name, "fused_triton")]), flush=True)


def draw(runs: list[Run], path: Path) -> None:
    """Draw the losses of each optimizer, ours over torch's, and below them the times per step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(12, 10), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(5, 3))
    rows = -(-len(OPTIMIZERS) // COLUMNS)
    panels = above.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False)
    draw_losses(runs, panels)
    handles, labels = panels[0][0].get_legend_handles_labels()
    above.suptitle("Training loss on digits, by epoch: every curve of optgen lies on torch's")
    above.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    times = below.subplots()
    draw_times(runs, times)
    below.suptitle("Time of one optimizer step: shorter is better")
    below.legend(loc="outside lower center", ncols=len(LOWERINGS) + 2)
    figure.savefig(path, dpi=110)
    print(f"\nplot: {path}")


def draw_losses(runs: list[Run], panels: Any) -> None:
    """Draw the losses of one optimizer in each panel."""
    for panel, name in zip(panels.flat, OPTIMIZERS, strict=False):
        curves = {run.how: run.losses for run in runs if run.name == name}
        epochs = range(1, len(curves["torch"]) + 1)
        panel.plot(epochs, curves.pop("torch"), color="0.75", linewidth=6, label="torch")
        curves.pop("torch fused", None)
        for (how, losses), style in zip(curves.items(), ("-", "--", ":"), strict=False):
            panel.plot(epochs, losses, style, label=how)
        panel.set(title=name, yscale="log")
        panel.xaxis.get_major_locator().set_params(integer=True)
    for unused in panels.flat[len(OPTIMIZERS) :]:
        unused.set_axis_off()


def draw_times(runs: list[Run], panel: Any) -> None:
    """Draw the times per step as bars, grouped by optimizer."""
    ways = list(dict.fromkeys(run.how for run in runs))
    width = 0.8 / len(ways)
    for j, how in enumerate(ways):
        bars = {run.name: run.ms for run in runs if run.how == how}
        positions = [i + j * width for i, name in enumerate(OPTIMIZERS) if name in bars]
        panel.bar(positions, list(bars.values()), width, label=how)
    panel.set_xticks([i + 0.4 - width / 2 for i in range(len(OPTIMIZERS))], list(OPTIMIZERS))
    panel.set(ylabel="ms per step (median)")
    panel.grid(axis="y", alpha=0.4)


def main() -> None:
    """Train, print and draw."""
    parser = argparse.ArgumentParser(description="Train on digits with generated optimizers.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--plot", type=Path, default=Path("demo.png"))
    parser.add_argument("--only", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--interpreted", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name in OPTIMIZERS.keys() - set(arguments.only):
        del OPTIMIZERS[name]
    if arguments.interpreted:
        interpret()
        return
    digits = Digits.load()
    runs = train_all(digits, arguments.epochs)
    train_interpreted(digits)
    draw(runs, arguments.plot)


if __name__ == "__main__":
    main()
