"""Stop a training, write a checkpoint, and continue from it with another optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from parity.classes import CLOSURE
from parity.trajectories import Make, Run, name_of, parameters, shapes_for, train


def fresh(make: Make, dtype: torch.dtype) -> Run:
    params = parameters(shapes_for(name_of(make)), dtype)
    return Run(make(params), params)


def saved(run: Run, path: Path) -> Path:
    torch.save({"params": [p.data for p in run.params], "optim": run.optimizer.state_dict()}, path)
    return path


def resumed(make: Make, dtype: torch.dtype, path: Path) -> Run:
    checkpoint: dict[str, Any] = torch.load(path, weights_only=True)
    run = fresh(make, dtype)
    for param, value in zip(run.params, checkpoint["params"], strict=True):
        param.data.copy_(value)
    run.optimizer.load_state_dict(checkpoint["optim"])
    run.loaded = True
    return run


def in_two_halves(first: Make, second: Make, dtype: torch.dtype, path: Path) -> Run:
    """Take 10 steps, write a checkpoint, and take 10 more with the second optimizer.

    Some parameters lack gradients in some steps. LBFGS takes two and two steps: each has several
    iterations, and it must not converge before the end.
    """
    before = fresh(first, dtype)
    steps = 2 if before.name in CLOSURE else 10
    train(before, steps, skip_some_gradients=True)
    after = resumed(second, dtype, saved(before, path))
    train(after, steps, start=steps, skip_some_gradients=True)
    return after
