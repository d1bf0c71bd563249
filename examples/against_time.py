"""Train on scikit-learn's digits with four optimizers, and draw the loss against time.

    python examples/against_time.py [--epochs 12] [--seeds 3] [--plot against_time.png]
    python examples/against_time.py --tune  # try the rates of RATES, and print the best of each

Time is what the process has computed on one thread: forward and backward passes and steps, without
the evaluations. So other processes on the machine change it little. Each run has its own seed of
weights and batches, and all optimizers have the same seeds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from demo import BATCH, Digits, Progress
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR

from optgen.optim import create_optimizer

Make = Callable[[nn.Module, float], Any]
OPTIMIZERS: dict[str, Make] = {
    "AdamW": lambda model, lr: create_optimizer(model, "adamw", lr=lr),
    "Muon": lambda model, lr: create_optimizer(
        model, "muon", lr=lr, others=("adamw", {"lr": 3e-3})
    ),
    "SOAP": lambda model, lr: create_optimizer(model, "soap", lr=lr),
    "Schedule-Free": lambda model, lr: create_optimizer(model, "schedule_free_adamw", lr=lr),
}
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
TUNED = {"AdamW": 1e-2, "Muon": 3e-2, "SOAP": 1e-2, "Schedule-Free": 1e-2}
"""The rates with the lowest test loss after `--tune`: 12 epochs, the mean of three seeds.

AdamW in Muon, for vectors and the output layer, has a fixed rate of 3e-3.
"""
WITHOUT_SCHEDULE = ("Schedule-Free",)


@dataclass
class Run:
    """One training: the seconds and the test loss after each epoch."""

    name: str
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


def network(seed: int) -> nn.Module:
    """Return the network, with weights that the seed decides."""
    torch.manual_seed(seed)
    layers = [nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10)]
    return nn.Sequential(*layers)


def train(digits: Digits, name: str, lr: float, seed: int, epochs: int) -> Run:
    """Train a network, with a linear decay of the rate unless the optimizer needs no schedule."""
    model = network(seed)
    optimizer = OPTIMIZERS[name](model, lr)
    count = len(digits.train)
    steps = epochs * -(-count // BATCH)
    decay = 0.0 if name in WITHOUT_SCHEDULE else 1.0
    scheduler = LambdaLR(optimizer, lambda step: 1 - decay * step / steps)
    order = torch.Generator().manual_seed(seed)
    run, spent = Run(name), 0.0
    for _ in range(epochs):
        start = time.process_time()
        for chosen in torch.randperm(count, generator=order).split(BATCH):
            optimizer.zero_grad()
            images, labels = digits.train[chosen], digits.train_labels[chosen]
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            scheduler.step()
        spent += time.process_time() - start
        run.seconds.append(spent)
        run.losses.append(test_loss(digits, model, optimizer))
    return run


@torch.no_grad()
def test_loss(digits: Digits, model: nn.Module, optimizer: Any) -> float:
    """Return the loss on the test images, with averaged weights if the optimizer has them."""
    if hasattr(optimizer, "eval"):
        optimizer.eval()
    loss = functional.cross_entropy(model(digits.test), digits.test_labels).item()
    if hasattr(optimizer, "train"):
        optimizer.train()
    return loss


def warm_up(digits: Digits) -> None:
    """Build the kernels, and take the steps that only prepare: they belong to no training."""
    for name in OPTIMIZERS:
        train(digits, name, TUNED[name], seed=0, epochs=1)


def tune(digits: Digits, seeds: int, epochs: int) -> None:
    """Print the mean test loss of each optimizer at each rate."""
    for name in OPTIMIZERS:
        losses = {}
        for lr in RATES:
            runs = [train(digits, name, lr, seed, epochs) for seed in range(seeds)]
            losses[lr] = statistics.mean(run.losses[-1] for run in runs)
        best = min(losses, key=losses.__getitem__)
        text = "  ".join(f"{lr:g}: {loss:.4f}" for lr, loss in losses.items())
        print(f"{name:<14} best {best:g}   {text}", flush=True)


def compare(digits: Digits, seeds: int, epochs: int) -> list[Run]:
    """Train with all optimizers and seeds, in turns; print a line for each optimizer."""
    runs: list[Run] = []
    progress = Progress(seeds * len(OPTIMIZERS))
    for seed in range(seeds):
        for name in OPTIMIZERS:
            progress.show(f"{name}, seed {seed}")
            runs.append(train(digits, name, TUNED[name], seed, epochs))
            progress.show(f"{name}, seed {seed}", done=1)
    progress.clear()
    print(
        f"{'optimizer':<14} {'rate':>6} {'test loss: mean':>16} {'least':>8} {'most':>8} {'s':>6}"
    )
    for name in OPTIMIZERS:
        own = [run for run in runs if run.name == name]
        last = [run.losses[-1] for run in own]
        seconds = statistics.mean(run.seconds[-1] for run in own)
        print(
            f"{name:<14} {TUNED[name]:6g} {statistics.mean(last):16.4f} {min(last):8.4f} "
            f"{max(last):8.4f} {seconds:6.2f}"
        )
    return runs


def draw(runs: list[Run], path: Path) -> None:
    """Draw the test losses against time: a line for the mean of the seeds, and a band for all."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for name in OPTIMIZERS:
        own = [run for run in runs if run.name == name]
        seconds = [statistics.mean(each) for each in zip(*(r.seconds for r in own), strict=True)]
        losses = [*zip(*(run.losses for run in own), strict=True)]
        (line,) = axis.plot(seconds, [*map(statistics.mean, losses)], marker=".", label=name)
        bounds = [*map(min, losses)], [*map(max, losses)]
        axis.fill_between(seconds, *bounds, alpha=0.2, color=line.get_color())
    axis.set(xlabel="seconds of one thread", ylabel="loss on the test images", yscale="log")
    axis.set_title(f"Digits: loss against time, {len(runs) // len(OPTIMIZERS)} seeds")
    axis.legend()
    figure.savefig(path, dpi=110)
    print(f"\nplot: {path}")


def main() -> None:
    """Tune, or train, print and draw."""
    parser = argparse.ArgumentParser(description="Draw the loss of four optimizers against time.")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plot", type=Path, default=Path("against_time.png"))
    parser.add_argument("--tune", action="store_true", help="try several rates instead")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    digits = Digits.load()
    warm_up(digits)
    if arguments.tune:
        tune(digits, arguments.seeds, arguments.epochs)
    else:
        draw(compare(digits, arguments.seeds, arguments.epochs), arguments.plot)


if __name__ == "__main__":
    main()
