"""Test the states that the parameters of a group share."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from runtime.wide.oracle import (
    ODD_WIDE,
    PRODIGY,
    parameters,
    step,
    two_groups,
)
from spec_files import spec_file

import optgen
from optgen import use_lowering
from optgen.keyed import KeyedOptimizerWrapper, UpdateInBackward


def test_the_group_keeps_its_states() -> None:
    optimizer = ODD_WIDE(two_groups(parameters()))
    assert optimizer.param_groups[0]["k"].item() == 1.0
    step(optimizer, 1)
    for group in optimizer.param_groups:
        assert group["k"].dtype == torch.float64
        assert group["k"].item() == 2.0
        assert not {"size", "k"} & set(optimizer.state[group["params"][0]])
    assert optimizer.param_groups[0]["k"] is not optimizer.param_groups[1]["k"]


def copies(optimizer: Any) -> Iterator[Any]:
    """Yield copies of an optimizer: by `copy`, by pickle, and by a checkpoint."""
    yield copy.deepcopy(optimizer)
    yield pickle.loads(pickle.dumps(optimizer))
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    groups = [
        {"params": [p.detach().clone().requires_grad_() for p in group["params"]]}
        for group in optimizer.param_groups
    ]
    loaded = type(optimizer)(groups)
    loaded.load_state_dict(torch.load(buffer))
    yield loaded


@pytest.mark.parametrize("cls", [ODD_WIDE, PRODIGY])
def test_copies_step_as_their_original(cls: Any) -> None:
    optimizer = cls(two_groups(parameters(), cls))
    step(optimizer, 1)
    optimizers = [*copies(optimizer), optimizer]
    for seed in (2, 3):
        for each in optimizers:
            step(each, seed)
    for each in optimizers[:-1]:
        for ours, theirs in zip(optimizer.param_groups, each.param_groups, strict=True):
            for a, b in zip(ours["params"], theirs["params"], strict=True):
                assert torch.equal(a, b)
            for state in cls.rule.group_states:
                assert torch.equal(ours[state.key], theirs[state.key])


def test_a_checkpoint_from_before_the_first_step_resets_group_states() -> None:
    fresh = PRODIGY(parameters()).state_dict()
    optimizer = PRODIGY(parameters())
    step(optimizer, 1)
    optimizer.load_state_dict(fresh)
    step(optimizer, 1)
    assert optimizer.param_groups[0]["k"].item() == 1.0


@pytest.mark.parametrize("value", [7, 7.0, torch.tensor([7], dtype=torch.int64)])
def test_a_state_of_the_group_may_be_set(value: Any) -> None:
    optimizer = PRODIGY(parameters())
    optimizer.param_groups[0]["k"] = value
    step(optimizer, 1)
    assert torch.equal(optimizer.param_groups[0]["k"], torch.tensor(8.0, dtype=torch.float64))


@pytest.mark.parametrize("steps_before", [0, 1, 3])
@pytest.mark.parametrize("lowering", [None, "forloop"])
def test_a_state_of_the_group_that_was_made_in_inference_mode(
    lowering: Any, steps_before: int
) -> None:
    """It is copied. A write to it would fail after the parameters had been updated."""
    with torch.inference_mode():
        value = torch.tensor(7.0, dtype=torch.float64)
    optimizer = PRODIGY(parameters())
    with use_lowering(lowering) if lowering else nullcontext():
        for seed in range(steps_before):
            step(optimizer, seed)
        optimizer.param_groups[0]["k"] = value
        step(optimizer, 4)
    assert (optimizer.param_groups[0]["k"].item(), value.item()) == (8.0, 7.0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("7", "must be a number, not '7'"),
        ([7.0], "must be a number"),
        (torch.ones(2), "2 elements"),
    ],
)
@pytest.mark.parametrize("lowering", [None, "forloop"])
def test_a_state_of_the_group_that_is_no_number_is_refused(
    value: Any, message: str, lowering: Any
) -> None:
    optimizer = PRODIGY(parameters())
    step(optimizer, 1)
    step(optimizer, 2)
    optimizer.param_groups[0]["k"] = value
    before = [param.detach().clone() for param in optimizer.param_groups[0]["params"]]
    raises_error = pytest.raises((TypeError, ValueError), match=message)
    with use_lowering(lowering) if lowering else nullcontext(), raises_error:
        step(optimizer, 3)
    assert all(map(torch.equal, optimizer.param_groups[0]["params"], before))


def test_a_state_given_with_a_group_is_copied() -> None:
    params, value = parameters(), torch.tensor([4.0])
    groups = [{"params": params[:2], "k": value}, {"params": params[2:4], "k": value}]
    optimizer = ODD_WIDE([*groups, {"params": params[4:], "k": 4}])
    for seed in (1, 2):
        step(optimizer, seed)
    for group in optimizer.param_groups:
        assert (group["k"].item(), group["k"].shape, group["k"].dtype) == (6, (), torch.float64)
    assert value.item() == 4.0


def test_a_checkpoint_may_have_a_plain_number_as_a_groups_state() -> None:
    """The authors' packages keep plain numbers in their groups."""
    optimizer = ODD_WIDE(parameters())
    checkpoint = optimizer.state_dict()
    checkpoint["param_groups"][0]["k"] = 7
    optimizer.load_state_dict(checkpoint)
    step(optimizer, 1)
    assert optimizer.param_groups[0]["k"].item() == 8.0


def test_a_group_without_parameters_keeps_its_state() -> None:
    optimizer = ODD_WIDE([{"params": []}, {"params": parameters()}])
    step(optimizer, 1)
    assert [group["k"].item() for group in optimizer.param_groups] == [1.0, 2.0]


def test_a_group_that_is_added_later_has_its_own_states() -> None:
    params = parameters()
    optimizer = ODD_WIDE(params[:3])
    step(optimizer, 1)
    optimizer.add_param_group({"params": params[3:]})
    step(optimizer, 2)
    assert [group["k"].item() for group in optimizer.param_groups] == [3.0, 2.0]


def test_a_groups_state_may_begin_as_a_tensor_that_requires_grad(recwarn: Any) -> None:
    optimizer = PRODIGY(parameters(), d0=torch.tensor(0.5, requires_grad=True))
    assert optimizer.param_groups[0]["d"].item() == 0.5
    assert not optimizer.param_groups[0]["d"].requires_grad
    assert not [str(each.message) for each in recwarn]


def test_keyed_optimizers_refuse_wide_rules() -> None:
    params_by_name = {"a": torch.nn.Parameter(torch.ones(3))}
    with pytest.raises(TypeError, match="Prodigy keeps the state k in its param groups"):
        KeyedOptimizerWrapper(params_by_name, PRODIGY)
    clipped: Any = optgen.load(spec_file("clipped_lamb"))
    with pytest.raises(TypeError, match="take its step after the backward pass"):
        UpdateInBackward(torch.nn.Linear(2, 2), clipped)
