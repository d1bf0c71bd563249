"""Test that a fused C++ step sees every change since the last step."""

import itertools
from typing import Any

import pytest
import torch
from runtime.changes import (
    CHANGES,
    Change,
    change_nothing,
    drop_some_gradients,
    give_gradients,
    parameters,
)
from runtime.training import error
from torch import Tensor

import optgen
from optgen.optim import SGD, Adam, NAdam, RAdam, RMSprop

TOLERANCE = 1e-12


def pair(cls: Any = Adam, **options: Any) -> tuple[Any, list[Tensor], Any, list[Tensor]]:
    """Return our optimizer and its parameters, torch's optimizer and its equal parameters."""
    ours, theirs = parameters(), parameters()
    reference = getattr(torch.optim, cls.__name__)
    return cls(ours, **options), ours, reference(theirs, **options, foreach=False), theirs


def check_against_torch(cls: Any, change: Change, steps: int = 6, **options: Any) -> None:
    """Check that both optimizers agree, with a change before the fourth step."""
    ours, our_params, torchs, torchs_params = pair(cls, **options)
    for step in range(steps):
        give_gradients(our_params, step)
        give_gradients(torchs_params, step)
        if step == 3:
            change(ours, our_params)
            change(torchs, torchs_params)
        ours.step()
        torchs.step()
        assert "fused C++" in optgen.explain(ours)
    assert error(our_params, torchs_params) < TOLERANCE
    for a, b in zip(ours.state.values(), torchs.state.values(), strict=True):
        assert list(a) == list(b)
        assert error(list(a.values()), list(b.values())) < TOLERANCE


@pytest.mark.usefixtures("with_and_without_reader")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize(
    ("cls", "options"),
    [(Adam, {"amsgrad": True}), (SGD, {"momentum": 0.9}), (NAdam, {})],
    ids=["Adam", "SGD", "NAdam"],
)
def test_changes_between_steps_are_seen(cls: Any, options: dict[str, Any], change: Change) -> None:
    check_against_torch(cls, change, **options)


@pytest.mark.usefixtures("with_and_without_reader")
def test_a_rule_without_state_sees_changes() -> None:
    check_against_torch(SGD, drop_some_gradients, weight_decay=0.1)


@pytest.mark.usefixtures("with_and_without_reader")
def test_a_rule_that_branches_on_the_step_count_sees_changes() -> None:
    check_against_torch(RAdam, drop_some_gradients, steps=12)  # rho passes 5 in step 6


@pytest.mark.usefixtures("with_and_without_reader")
def test_a_rule_with_two_optional_states_follows_torch() -> None:
    for momentum, centered in itertools.product((0, 0.9), (False, True)):
        check_against_torch(RMSprop, change_nothing, momentum=momentum, centered=centered)


def test_new_groups_and_parameters_are_seen() -> None:
    def grow(optimizer: Any, params: list[Tensor]) -> None:
        new = [torch.nn.Parameter(torch.ones(n, dtype=torch.float64)) for n in (2, 3)]
        params += new
        give_gradients(params, 3)
        optimizer.add_param_group({"params": [new[0]], "lr": 0.5})
        optimizer.param_groups[0]["params"].append(new[1])

    check_against_torch(Adam, grow)


def test_the_first_gradients_of_a_group_are_seen() -> None:
    results = []
    for cls in (Adam, torch.optim.Adam):
        params = parameters()
        optimizer = cls([{"params": params[:2]}, {"params": params[2:], "lr": 0.1}])
        for step in range(6):
            give_gradients(params[: 2 if step < 3 else 5], step)
            optimizer.step()
        results.append(params)

    assert error(*results) < TOLERANCE


def test_a_cached_step_is_refused_after_a_group_chose_another_lowering() -> None:
    params = parameters()
    optimizer = Adam(params)
    for step in range(3):
        give_gradients(params, step)
        optimizer.step()
    optimizer.param_groups[0]["foreach"] = False

    assert not optimizer._context.cached_step.run(optimizer)
