"""Test torchtitan's containers: an optimizer for each part of a model, or for each parameter."""

from typing import Any

import pytest
import torch
from frameworks.tiny_model import LR, Data, Model, deviation, weights
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torchtitan.components.lr_scheduler import build_lr_schedulers
from torchtitan.components.optimizer import OptimizersContainer, OptimizersInBackwardContainer
from torchtitan.config import LRScheduler

from optgen import optim

STEPS = 8
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
CASES = [
    ("AdamW", {"fused": True, "foreach": False}),
    ("Adam", {"fused": False, "foreach": True}),
    ("SGD", {"momentum": 0.9}),
    ("Adafactor", {}),
]


class Parts(nn.Module):
    """A model in two parts, as in a pipeline; each part has parameter names of its own."""

    def __init__(self) -> None:
        super().__init__()
        body = list(Model().body)
        self.first, self.second = nn.Module(), nn.Module()
        self.first.bottom, self.second.top = nn.Sequential(*body[:2]), nn.Sequential(*body[2:])

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        logits = self.second.top(self.first.bottom(inputs.double()))
        return nn.functional.cross_entropy(logits, labels)


class Loop:
    """A training loop that uses the containers as torchtitan's trainer does."""

    def __init__(self, cls: Any, name: str, library: Any, options: dict[str, Any]) -> None:
        self.model = Parts()
        self.parts = [self.model.first, self.model.second]
        self.optimizers = cls(self.parts, getattr(library, name), {"lr": LR, **options})
        config = LRScheduler(warmup_steps=2, decay_ratio=0.5)
        self.schedulers = build_lr_schedulers(self.optimizers, config, STEPS)

    def part(self, optimizer: torch.optim.Optimizer) -> nn.Module:
        """Return the part of the model that an optimizer of the container steps."""
        return self.parts[list(self.optimizers).index(optimizer)]

    def train(self, steps: int) -> list[Tensor]:
        data = Data()
        for _ in range(steps):
            self.optimizers.zero_grad()
            self.model(data.inputs, data.labels).backward()
            self.optimizers.step()
            self.schedulers.step()
        return weights(self.model)


@pytest.mark.parametrize("cls", [OptimizersContainer, OptimizersInBackwardContainer])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_training_equals_torchs(name: str, options: dict[str, Any], cls: Any) -> None:
    loop, reference = (Loop(cls, name, library, options) for library in (optim, torch.optim))
    params = loop.train(STEPS)

    assert deviation(params, reference.train(STEPS)) < 1e-6
    assert deviation(params, weights(Model())) > 1e-3
    assert {type(each) for each in loop.optimizers} == {getattr(optim, name)}
    assert len(loop.optimizers) == (2 if cls is OptimizersContainer else len(params))


@pytest.mark.parametrize("saver", [optim, torch.optim])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_resumed_training_equals_uninterrupted_training(
    name: str, options: dict[str, Any], saver: Any
) -> None:
    """Checkpoints are flat dictionaries by parameter name; torch's optimizer writes some."""
    expected = Loop(OptimizersContainer, name, optim, options).train(STEPS)
    first = Loop(OptimizersContainer, name, saver, options)
    first.train(3)
    saved, scheduled = first.optimizers.state_dict(), first.schedulers.state_dict()

    second = Loop(OptimizersContainer, name, optim, options)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizers.load_state_dict(saved)
    second.schedulers.load_state_dict(scheduled)
    assert "param_groups.bottom.0.weight.lr" in saved
    assert deviation(second.train(STEPS - 3), expected) < 1e-12


def test_an_optimizer_for_each_parameter_is_saved_by_name() -> None:
    """`get_optimizer_state_dict` saves every optimizer.

    The container's own `state_dict` would save only the first optimizer of each model part, so
    the test does not use it.
    """
    loops = [Loop(OptimizersInBackwardContainer, "AdamW", optim, {}) for _ in range(2)]
    expected = Loop(OptimizersInBackwardContainer, "AdamW", optim, {}).train(STEPS)
    models = [loop.model for loop in loops]
    loops[0].train(3)
    saved = get_optimizer_state_dict(models[0], list(loops[0].optimizers), options=FLAT)

    assert sum(key.endswith(".exp_avg") for key in saved) == len(expected)
    models[1].load_state_dict(models[0].state_dict())
    set_optimizer_state_dict(
        models[1], list(loops[1].optimizers), optim_state_dict=saved, options=FLAT
    )
    loops[1].schedulers.load_state_dict(loops[0].schedulers.state_dict())
    assert deviation(loops[1].train(STEPS - 3), expected) < 1e-12


def test_a_checkpoint_of_a_fresh_optimizer_does_not_change_the_model() -> None:
    loop = Loop(OptimizersContainer, "AdamW", optim, {})
    before = weights(loop.model)
    loop.optimizers.state_dict()

    assert deviation(weights(loop.model), before) == 0
