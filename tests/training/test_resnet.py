"""Train a residual network on digits with every optimizer class, through every lowering.

The noise is the standard deviation of torch's final losses from three seeds, each with its own
initial weights and order of images. The test compares optgen's final loss from one of these seeds
with torch's from the same seed. Only rounding differs, so the difference must be a small part of
the noise; for most classes it is a millionth.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from parity.cases import forcible_lowerings
from parity.classes import CLOSURE_CLASSES, MATRIX_CLASSES, NAMES, SPARSE_CLASSES, torch_has_flag
from parity.trajectories import forced_lowering, relative_error
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer
from training.digits import Network, batches, final_loss

import optgen.optim

OPTIONS: dict[str, dict[str, Any]] = {
    "Adadelta": {"lr": 1.0},
    "Adafactor": {"lr": 0.03},
    "Adagrad": {"lr": 0.02},
    "Adam": {"lr": 0.005, "amsgrad": True},
    "Adamax": {"lr": 0.01},
    "AdamW": {"lr": 0.005},
    "ASGD": {"lr": 0.05},
    "LBFGS": {"lr": 0.3, "max_iter": 5},
    "Muon": {"lr": 0.02},
    "NAdam": {"lr": 0.002},
    "RAdam": {"lr": 0.02},
    "RMSprop": {"lr": 0.001, "momentum": 0.5},
    "Rprop": {"lr": 0.001},
    "SGD": {"lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4},
    "SparseAdam": {"lr": 0.01},
}
SEEDS = (0, 1, 2)


def new_optimizers(module: Any, name: str, network: Network, **options: Any) -> list[Optimizer]:
    """Return an optimizer of the class, and an Adam for parameters that the class does not take."""
    params = list(network.parameters())
    own_params = params
    if name in MATRIX_CLASSES:
        own_params = [network.hidden.weight, network.head.weight]
    elif name in SPARSE_CLASSES:
        own_params = [network.stem.weight]
    rest = [p for p in params if all(p is not own for own in own_params)]
    optimizers = [getattr(module, name)(own_params, **OPTIONS[name], **options)]
    return optimizers + ([module.Adam(rest, lr=0.003)] if rest else [])


def closure(
    network: Network, optimizers: list[Optimizer], pixels: Tensor, labels: Tensor
) -> Callable[[], Tensor]:
    def compute() -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = F.cross_entropy(network(pixels), labels)
        loss.backward()
        return loss

    return compute


def trained_network(
    module: Any, name: str, seed: int, max_steps: int | None = None, **options: Any
) -> Network:
    """Return the network after two epochs, or after `max_steps` if that is earlier."""
    torch.manual_seed(seed)
    network = Network(sparse=name in SPARSE_CLASSES)
    optimizers = new_optimizers(module, name, network, **options)
    size = 600 if name in CLOSURE_CLASSES else 96
    for step, (pixels, labels) in enumerate(batches(2, size)):
        if step == max_steps:
            break
        compute = closure(network, optimizers, pixels, labels)
        if name in CLOSURE_CLASSES:
            optimizers[0].step(compute)
        else:
            compute()
            for optimizer in optimizers:
                optimizer.step()
    return network


@functools.cache
def torch_losses(name: str) -> list[float]:
    """Return torch's final losses, one for each seed."""
    forloop = {"foreach": False} if torch_has_flag(name, "foreach") else {}
    return [final_loss(trained_network(torch.optim, name, seed, **forloop)) for seed in SEEDS]


@pytest.mark.one_case_in(12)
@outside_interpreter
@pytest.mark.parametrize(
    ("name", "lowering"),
    [
        (name, lowering)
        for number, name in enumerate(NAMES)
        for index, lowering in enumerate(forcible_lowerings(name) or [None])
        if lowering in ("fused_cpu", None) or (number + index) % 2
    ],
)
def test_two_epochs_end_at_torchs_loss(name: str, lowering: str | None) -> None:
    """Every class trains in C++, and in one of the two unfused lowerings."""
    theirs = torch_losses(name)

    with forced_lowering(lowering):
        ours = final_loss(trained_network(optgen.optim, name, SEEDS[0]))

    assert abs(ours - theirs[0]) <= statistics.stdev(theirs) / 4
    assert statistics.mean(theirs) < 0.75 * math.log(
        10
    )  # the network learns: guessing costs log(10)


@inside_interpreter
@pytest.mark.parametrize("name", [name for name in NAMES if forcible_lowerings(name)])
def test_a_few_steps_through_triton_follow_torch(name: str) -> None:
    """Muon takes two steps only.

    Newton-Schulz computes in bfloat16, so one different last bit changes an update by 1e-3, and the
    difference grows from step to step.
    """
    steps, bound = (2, 5e-3) if name in MATRIX_CLASSES else (3, 1e-4)
    with forced_lowering("fused_triton"):
        ours = trained_network(optgen.optim, name, SEEDS[0], max_steps=steps)
    theirs = trained_network(torch.optim, name, SEEDS[0], max_steps=steps)

    for (key, found), expected in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert relative_error(found, expected) < bound, key


@outside_interpreter
def test_a_few_steps_through_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside("tests/training/test_resnet.py")
