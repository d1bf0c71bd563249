"""Train, write a checkpoint, and continue the training from it with another optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from parity.classes import CLOSURE_CLASSES
from parity.trajectories import Make, Run, class_name, random_parameters, shapes_for, train


def new_run(make: Make, dtype: torch.dtype) -> Run:
    params = random_parameters(shapes_for(class_name(make)), dtype)
    return Run(make(params), params)


def save_run(run: Run, path: Path) -> Path:
    torch.save({"params": [p.data for p in run.params], "optim": run.optimizer.state_dict()}, path)
    return path


def resume_run(make: Make, dtype: torch.dtype, path: Path) -> Run:
    checkpoint: dict[str, Any] = torch.load(path, weights_only=True)
    run = new_run(make, dtype)
    for param, value in zip(run.params, checkpoint["params"], strict=True):
        param.data.copy_(value)
    run.optimizer.load_state_dict(checkpoint["optim"])
    run.loaded = True
    return run


def train_in_two_halves(first: Make, second: Make, dtype: torch.dtype, path: Path) -> Run:
    """Take 10 steps, write a checkpoint, and take 10 more with the second optimizer.

    Some parameters lack gradients in some steps. LBFGS takes only 2 steps, and 2 more: a step has
    several iterations, and LBFGS must not converge before the end.
    """
    before = new_run(first, dtype)
    steps = 2 if before.name in CLOSURE_CLASSES else 10
    train(before, steps, skip_some_gradients=True)
    after = resume_run(second, dtype, save_run(before, path))
    train(after, steps, start=steps, skip_some_gradients=True)
    return after
