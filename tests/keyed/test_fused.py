"""Test fused optimizers, which update in the backward pass, and how a model's are collected."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from keyed.models import NoOpOptimizer
from torch import nn

from optgen.keyed import (
    CombinedOptimizer,
    EmptyFusedOptimizer,
    FusedEmbedding,
    FusedOptimizer,
    FusedOptimizerModule,
    KeyedOptimizer,
    UpdateInBackward,
    fused_optimizer_of,
)
from optgen.optim import SGD


class StepCounter(FusedOptimizer):
    """An optimizer that counts its steps."""

    steps = 0

    def step(self, closure: Any = None) -> None:
        self.steps += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.steps = 0


class Layer(nn.Linear, FusedOptimizerModule):
    """A module with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.inside = FusedEmbedding(2, 2)  # not collected: it belongs to the layer
        params = {"weight": self.weight, "bias": self.bias}
        self._optimizer = StepCounter(params, {}, [{"params": list(params.values()), "lr": 0.1}])

    @property
    def fused_optimizer(self) -> KeyedOptimizer:
        return self._optimizer


def test_fused_classes_are_abstract_and_a_subclass_has_a_repr() -> None:
    for cls in (FusedOptimizer, FusedOptimizerModule):
        with pytest.raises(TypeError, match="abstract"):
            cls()
    assert "lr: 0.1" in repr(Layer().fused_optimizer)


def test_an_empty_fused_optimizer_does_nothing() -> None:
    empty = EmptyFusedOptimizer()
    empty.step()
    empty.zero_grad()
    assert empty.step(lambda: 3.0) == 3.0
    assert empty.state_dict() == {"state": {}}
    empty.load_state_dict({"state": {}})
    combined = CombinedOptimizer([("a", empty), ("b", NoOpOptimizer({}, {}, []))])
    assert combined.state_dict() == {"state": {}}


def test_a_models_optimizers_are_collected_under_their_paths() -> None:
    shared = Layer()
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Layer(), nn.ReLU()), shared, shared)
    collected = fused_optimizer_of(model)

    assert [key for key, _ in collected.optimizers] == ["1.0", "2"]
    assert list(collected.params) == ["1.0.weight", "1.0.bias", "2.weight", "2.bias"]
    assert set(collected.params) < set(dict(model.named_parameters()))
    collected.step()
    assert [each.steps for _, each in collected.optimizers] == [1, 1]  # type: ignore[attr-defined]


def test_a_model_may_be_one_fused_module_or_have_none() -> None:
    assert list(fused_optimizer_of(FusedEmbedding(3, 2)).params) == ["weight"]
    assert fused_optimizer_of(nn.Linear(2, 2)).state_dict() == {"state": {}}


def test_collected_parameters_have_the_models_names() -> None:
    """UpdateInBackward wraps a part of the model; a table in this part keeps its own optimizer."""
    part = nn.Sequential(FusedEmbedding(4, 3), nn.Linear(3, 2))
    model = nn.Sequential(nn.Flatten(), UpdateInBackward(part, SGD, lr=0.1))
    collected = fused_optimizer_of(model)
    collected.init_state()

    assert sorted(collected.params) == sorted(dict(model.named_parameters()))
    # SGD without momentum has no state.
    assert set(collected.state_dict()["state"]) == {"1.module.0.weight"}
    before = [param.detach().clone() for param in model.parameters()]
    model(torch.tensor([[1, 2]])).sum().backward()
    assert all(param.grad is None for param in model.parameters())
    pairs = zip(before, model.parameters(), strict=True)
    assert not any(torch.equal(old, new) for old, new in pairs)
