"""Train the small transformer with a result, and validate it every few steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from examples.track3.input_covariances import InputCovariances
from examples.track3.model import Transformer
from examples.track3.result import Result, set_options
from examples.track3.text import Text


@dataclass(frozen=True)
class Setup:
    """The size of a training run."""

    steps: int = 200
    batch: int = 16  # pieces of text
    length: int = 64  # bytes of a piece
    every: int = 25  # steps between validations


@dataclass(frozen=True)
class Run:
    """The record of a training run.

    Attributes:
        name: the name of the result or of the baseline.
        seed: the seed of the initial weights and of the batches.
        lr: the learning rate of a baseline.
        scaled: whether the projections began at scaled weights instead of zeros.
        steps: the number of steps before each validation.
        losses: the mean loss of each validation. A run that diverged has fewer validations.
        seconds: the duration of the run.
    """

    name: str
    seed: int
    lr: float | None
    scaled: bool
    steps: list[int]
    losses: list[float]
    seconds: float

    def last_loss(self, setup: Setup) -> float:
        """Return the loss after the last step; it is infinite if the run diverged."""
        return self.losses[-1] if self.steps[-1:] == [setup.steps] else math.inf


@contextmanager
def eval_mode(optimizers: list[torch.optim.Optimizer]) -> Iterator[None]:
    """Switch optimizers that have an eval mode to it, and afterwards back to train mode."""
    with_modes: list[Any] = [optimizer for optimizer in optimizers if hasattr(optimizer, "eval")]
    for optimizer in with_modes:
        optimizer.eval()
    yield
    for optimizer in with_modes:
        optimizer.train()


def train(
    name: str,
    result: Result,
    seed: int,
    setup: Setup,
    lr: float | None = None,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> Run:
    """Train with a result. Its schedules are shortened to the steps of the setup."""
    torch.manual_seed(seed)
    text, model = Text.load(), Transformer()
    model.set_initial_weights(result.scaled)
    optimizers = result.optimizers(model.named_parameters())
    covariances = InputCovariances(model, result.covariance_interval)
    batches = torch.Generator().manual_seed(seed)
    held_out = text.validation_pieces(128, setup.length)
    start, steps, losses = time.perf_counter(), [], []
    for step in range(setup.steps + 1):
        if step % setup.every == 0 or step == setup.steps:
            with torch.no_grad(), eval_mode(optimizers):
                loss = model.loss(*held_out).item()
            if not math.isfinite(loss):
                break
            steps.append(step)
            losses.append(round(loss, 5))
            report(step, loss)
        if step < setup.steps:
            set_options(optimizers, step * result.steps / setup.steps)
            model.zero_grad()
            with covariances.measure(step):
                model.loss(*text.batch(setup.batch, setup.length, batches)).backward()
            of_matrices, *others = optimizers
            of_matrices.step(**covariances.arguments(of_matrices))
            for optimizer in others:
                optimizer.step()
    seconds = round(time.perf_counter() - start, 1)
    return Run(name, seed, lr, result.scaled, steps, losses, seconds)
