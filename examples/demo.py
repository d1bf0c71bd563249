"""Train a small network on scikit-learn's digits with generated optimizers, in every lowering.

    python examples/demo.py [--epochs 20] [--plot demo.png] [--only SGD AdamW ...] [--triton]
    python examples/demo.py --all  # twelve optimizers, and Triton: many minutes

The script prints and draws loss, accuracy and time per step beside those of torch.optim. The Triton
lowering runs in Triton's interpreter. The interpreter is slow, and must be enabled before kernels
are defined. So the Triton lowering takes only a few steps, in a separate process.
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
FIRST = ("AdamW", "RAdam", "Adafactor")
"""The optimizers that train without `--all`: one that torch fuses, and two that it does not."""
FUSED_IN_TORCH = ("SGD", "Adam", "AdamW", "Adagrad")
LOWERINGS = ("forloop", "foreach", "fused_cpu")
INTERPRETED_STEPS = 5  # of each optimizer, in Triton's interpreter
COLUMNS = 4  # of the plot, at most
BATCH = 128


@dataclass(frozen=True)
class Digits:
    """1,797 images of 8 × 8 pixels, and their labels; every fifth image is for testing."""

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
        is_test = torch.arange(len(y)) % 5 == 0
        return cls(x[~is_test], y[~is_test], x[is_test], y[is_test])

    def batches(self, epochs: int) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
        """Yield the list of batches of each epoch; it is the same for every run."""
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


class Progress:
    """A bar on the terminal; where stderr is no terminal, a line whenever the work changes."""

    WIDTH = 30

    def __init__(self, total: int) -> None:
        self._total, self._done, self._work = total, 0, ""
        self._redraws = sys.stderr.isatty()

    def show(self, work: str, done: int = 0) -> None:
        """Say what is under way, after `done` more units of work."""
        self._done += done
        share = min(self._done / self._total, 1.0)
        if self._redraws:
            filled = round(share * self.WIDTH)
            bar = "#" * filled + "." * (self.WIDTH - filled)
            print(f"\r\033[K[{bar}] {share:4.0%}  {work}", end="", file=sys.stderr, flush=True)
        elif work != self._work:
            print(f"{share:4.0%}  {work}", file=sys.stderr, flush=True)
        self._work = work

    def clear(self) -> None:
        """Take the bar away, so that a line of results can be printed."""
        if self._redraws:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class Run:
    """One training run with its own network.

    Attributes:
        name: the class of the optimizer.
        variant: a lowering of optgen, "torch" or "torch fused".
        losses: the loss over all training images after each epoch.
        times: the seconds of each optimizer step.
    """

    def __init__(self, name: str, variant: str) -> None:
        self.name = name
        self.variant = variant
        self.losses: list[float] = []
        self.times: list[float] = []
        self.model = network()
        is_torch = variant.startswith("torch")
        options = OPTIMIZERS[name] | ({"fused": True} if variant == "torch fused" else {})
        cls = getattr(torch.optim if is_torch else optgen.optim, name)
        self.optimizer = cls(self.model.parameters(), **options)
        self.lowering = contextlib.nullcontext if is_torch else lambda: optgen.use_lowering(variant)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Train on one batch; time only the optimizer's step."""
        self.optimizer.zero_grad()
        functional.cross_entropy(self.model(images), labels).backward()
        with self.lowering():
            start = time.process_time()  # of this process alone, on a busy machine, too
            self.optimizer.step()
            self.times.append(time.process_time() - start)

    @torch.no_grad()
    def loss(self, digits: Digits) -> float:
        """Return the loss over all training images."""
        return functional.cross_entropy(self.model(digits.train), digits.train_labels).item()

    @torch.no_grad()
    def accuracy(self, digits: Digits) -> float:
        """Return the fraction of test images that are recognised."""
        is_correct = self.model(digits.test).argmax(1) == digits.test_labels
        return is_correct.float().mean().item()

    @property
    def ms(self) -> float:
        """Return the median time of an optimizer step, in milliseconds."""
        return statistics.median(self.times) * 1e3


def possible_runs(digits: Digits, name: str) -> list[Run]:
    """Return a run for each variant of an optimizer that can take a trial step on this machine."""
    fused = ["torch fused"] if name in FUSED_IN_TORCH else []
    runs = []
    for variant in ("torch", *fused, *LOWERINGS):
        try:
            Run(name, variant).step(digits.train[:BATCH], digits.train_labels[:BATCH])
            runs.append(Run(name, variant))
        except RuntimeError as error:  # for example, this machine has no compiler
            print(f"{name:<10} {variant:<13} not here: {error}", flush=True)
    return runs


def train_all(digits: Digits, epochs: int) -> list[Run]:
    """Train every optimizer. Its runs alternate by epochs, so that their times are comparable."""
    print(f"{'optimizer':<10} {'lowering':<13} {'loss':>9} {'accuracy':>9} {'ms/step':>8}  speed")
    all_runs: list[Run] = []
    progress = Progress(len(OPTIMIZERS) * (epochs + 1))
    for name in OPTIMIZERS:
        progress.show(f"{name}: a first step of each kind, which builds the kernel once")
        runs = possible_runs(digits, name)
        for batches in digits.batches(epochs):
            progress.show(f"{name}: {epochs} epochs of training", done=1)
            for run in runs:
                for images, labels in batches:
                    run.step(images, labels)
                run.losses.append(run.loss(digits))
        progress.show(f"{name}: done", done=1)
        progress.clear()
        for run in runs:
            print(
                f"{name:<10} {run.variant:<13} {run.losses[-1]:9.5f} {run.accuracy(digits):9.1%} "
                f"{run.ms:8.3f}  {runs[0].ms / run.ms:.1f}x",
                flush=True,
            )
        all_runs += runs
    return all_runs


def loss_after_few_steps(digits: Digits, name: str, variant: str) -> float:
    """Return the loss after the first `INTERPRETED_STEPS` steps."""
    run = Run(name, variant)
    for images, labels in next(digits.batches(1))[:INTERPRETED_STEPS]:
        run.step(images, labels)
    return run.loss(digits)


def train_interpreted(digits: Digits) -> None:
    """Take a few steps with interpreted Triton kernels in a separate process, and print the losses.

    Beside them stand the losses of torch's optimizers after the same number of steps.
    """
    print(f"\nTriton, interpreted: loss after {INTERPRETED_STEPS} steps", flush=True)
    progress = Progress(len(OPTIMIZERS))
    progress.show("each optimizer takes up to a minute")
    command = [sys.executable, __file__, "--interpreted", "--only", *OPTIMIZERS]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            name, loss = json.loads(line)
            progress.clear()
            torch_loss = loss_after_few_steps(digits, name, "torch")
            print(f"{name:<10} fused_triton  {loss:9.5f}   torch {torch_loss:9.5f}", flush=True)
            progress.show(f"after {name}", done=1)
        progress.clear()
    if process.returncode:
        raise SystemExit(f"the interpreter's process ended with {process.returncode}")


def print_interpreted_losses() -> None:
    """Print the loss of each optimizer as a line of JSON. Runs in the interpreter's process."""
    digits = Digits.load()
    for name in OPTIMIZERS:
        loss = loss_after_few_steps(digits, name, "fused_triton")
        print(json.dumps([name, loss]), flush=True)


def draw(runs: list[Run], path: Path) -> None:
    """Draw the losses of each optimizer, ours on top of torch's, and below them the step times."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(COLUMNS, len(OPTIMIZERS))
    rows = -(-len(OPTIMIZERS) // columns)
    figure = pyplot.figure(figsize=(12, 5 + 5 * rows / 3), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(5 * rows, 9))
    panels = above.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    draw_losses(runs, panels)
    handles, labels = panels[0][0].get_legend_handles_labels()
    above.suptitle("Training loss on digits, by epoch: optgen's curves lie on torch's")
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
        curves = {run.variant: run.losses for run in runs if run.name == name}
        epochs = range(1, len(curves["torch"]) + 1)
        panel.plot(epochs, curves.pop("torch"), color="0.75", linewidth=6, label="torch")
        curves.pop("torch fused", None)
        for (variant, losses), style in zip(curves.items(), ("-", "--", ":"), strict=False):
            panel.plot(epochs, losses, style, label=variant)
        panel.set(title=name, yscale="log")
        panel.xaxis.get_major_locator().set_params(integer=True)
    for unused in panels.flat[len(OPTIMIZERS) :]:
        unused.set_axis_off()


def draw_times(runs: list[Run], panel: Any) -> None:
    """Draw the times per step as bars, grouped by optimizer."""
    variants = list(dict.fromkeys(run.variant for run in runs))
    width = 0.8 / len(variants)
    for j, variant in enumerate(variants):
        bars = {run.name: run.ms for run in runs if run.variant == variant}
        positions = [i + j * width for i, name in enumerate(OPTIMIZERS) if name in bars]
        panel.bar(positions, list(bars.values()), width, label=variant)
    panel.set_xticks([i + 0.4 - width / 2 for i in range(len(OPTIMIZERS))], list(OPTIMIZERS))
    panel.set(ylabel="ms per step (median)", yscale="log")
    panel.grid(axis="y", alpha=0.4)


def main() -> None:
    """Train, print and draw."""
    parser = argparse.ArgumentParser(description="Train on digits with generated optimizers.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--plot", type=Path, default=Path("demo.png"))
    parser.add_argument("--only", nargs="+", choices=OPTIMIZERS, default=list(FIRST))
    parser.add_argument("--triton", action="store_true", help="also in Triton's interpreter")
    parser.add_argument("--all", action="store_true", help="every optimizer, also in Triton")
    parser.add_argument("--interpreted", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    chosen = OPTIMIZERS if arguments.all else arguments.only
    for name in OPTIMIZERS.keys() - set(chosen):
        del OPTIMIZERS[name]
    if arguments.interpreted:
        print_interpreted_losses()
        return
    torch.set_num_threads(1)  # threads that wait for one another on a busy machine are slow
    digits = Digits.load()
    runs = train_all(digits, arguments.epochs)
    if arguments.all or arguments.triton:
        train_interpreted(digits)
    draw(runs, arguments.plot)


if __name__ == "__main__":
    main()
