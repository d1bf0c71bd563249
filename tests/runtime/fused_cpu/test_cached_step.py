"""Test that changes after which another lowering may have to step end a cached fused step."""

from typing import Any

import pytest
import torch
from runtime.test_between_steps import parameters, train
from runtime.training import error

from optgen import use_lowering
from optgen.optim import SGD, Adam
from optgen.runtime.eager.backend import EagerBackend


@pytest.fixture
def unfused_steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each unfused step appends its lowering."""
    lowerings: list[str] = []
    prepare = EagerBackend.prepare

    def record_and_prepare(self: EagerBackend, *arguments: Any) -> object:
        lowerings.append(self._lowering)
        return prepare(self, *arguments)

    monkeypatch.setattr(EagerBackend, "prepare", record_and_prepare)
    return lowerings


@pytest.mark.parametrize(
    ("option", "lowering"),
    [({"foreach": True}, "foreach"), ({"foreach": False}, "forloop"), ({"fused": False}, None)],
)
def test_the_end_of_a_context_ends_its_forced_lowering(
    option: dict[str, bool], lowering: str | None, unfused_steps: list[str]
) -> None:
    params = parameters()
    optimizer = Adam(params, **option)
    with use_lowering("fused_cpu"):
        train(optimizer, params, 3)
    assert not unfused_steps

    train(optimizer, params, 2)

    assert len(unfused_steps) == 2
    assert lowering is None or set(unfused_steps) == {lowering}


def test_a_cached_step_is_not_repeated_under_a_forced_lowering(unfused_steps: list[str]) -> None:
    params = parameters()
    optimizer = Adam(params)
    train(optimizer, params, 3)
    with use_lowering("forloop"):
        train(optimizer, params, 2)

    assert unfused_steps == ["forloop", "forloop"]


def test_a_tensor_lr_of_lower_precision_gives_torchs_step() -> None:
    ours, theirs = parameters(), parameters()
    for cls, params in ((Adam, ours), (torch.optim.Adam, theirs)):
        optimizer = cls(params, lr=torch.tensor(0.01, dtype=torch.float64))
        train(optimizer, params, 6)
        optimizer.param_groups[0]["lr"] = torch.tensor(0.01)
        train(optimizer, params, 6)

    assert error(ours, theirs) < 1e-12


def test_parameters_of_higher_precision_than_a_tensor_lr_end_the_cached_step(
    unfused_steps: list[str],
) -> None:
    params = parameters(torch.bfloat16)
    optimizer = Adam(params, lr=torch.tensor(0.01, dtype=torch.bfloat16))
    train(optimizer, params, 3)
    assert not unfused_steps
    for param in params:
        state = optimizer.state[param]
        state |= {key: value.float() for key, value in state.items() if key != "step"}
        param.grad, param.data = None, param.data.float()

    train(optimizer, params, 2)

    assert unfused_steps == ["forloop", "forloop"]


def test_a_parameter_listed_twice_ends_the_cached_step(unfused_steps: list[str]) -> None:
    """Two threads might update the parameter at once. No state shows the change."""
    params = parameters()
    optimizer = SGD(params, lr=0.1)
    train(optimizer, params, 3)
    assert not unfused_steps
    optimizer.param_groups[0]["params"][2] = params[1]

    train(optimizer, params, 2)

    assert unfused_steps == ["forloop", "forloop"]
