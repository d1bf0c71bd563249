"""Test states of all groups, and hyperparameters that have one value in all groups."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from interpreter import outside_interpreter, run_inside
from runtime.wide.oracle import LOWERINGS, PRODIGY, Oracle, give_gradients, parameters, step
from runtime.wide.rule_texts import SPECS_IN_TEXTS
from runtime.wide.test_group_states import copies
from torch import Tensor, nn

import optgen
from optgen import use_lowering
from optgen.optim import DAdaptAdam, Prodigy, create_optimizer
from optgen.optim.lr_scheduler import LambdaLR

ACROSS: Any = optgen.load(SPECS_IN_TEXTS["across"])
KEYS = ("k", "d", "d_max", "d_numerator")


def three_groups(params: list[Tensor]) -> list[dict[str, Any]]:
    return [{"params": params[:2]}, {"params": params[2:4]}, {"params": params[4:]}]


def values(optimizer: Any, key: str) -> list[float]:
    return [float(group[key]) for group in optimizer.param_groups]


def without_gradients(optimizer: Any, *groups: int) -> None:
    for index in groups:
        for param in optimizer.param_groups[index]["params"]:
            param.grad = None


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_groups_of_every_kind_step_as_the_oracle(lowering: str) -> None:
    """A rate is 0, gradients are missing, and a group is added later."""
    params = parameters()
    optimizer = ACROSS(three_groups(params)[:2])
    oracle = Oracle(SPECS_IN_TEXTS["across"], optimizer)
    for seed in range(8):
        if seed == 3:
            optimizer.add_param_group({"params": params[4:], "decay": 0.3})
            oracle.values += [(param.detach().clone(), {}) for param in params[4:]]
        optimizer.param_groups[1]["lr"] = 0.0 if seed in (1, 2, 5) else 0.1
        give_gradients(optimizer, seed)
        without_gradients(optimizer, *([0] if seed == 4 else [1] if seed == 6 else []))
        oracle.step()
        with use_lowering(lowering):
            optimizer.step()
        assert oracle.difference() < 1e-12
        for key in ("k", "d"):
            expected = [oracle.states_of_all[key].item()] * len(optimizer.param_groups)
            assert values(optimizer, key) == pytest.approx(expected, rel=1e-12)


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__, "fused_triton")


def test_all_groups_keep_one_tensor() -> None:
    optimizer = PRODIGY(three_groups(parameters()))
    for seed in range(4):
        give_gradients(optimizer, seed)
        without_gradients(optimizer, seed % 3)
        optimizer.step()
        for key in KEYS:
            assert len({id(group[key]) for group in optimizer.param_groups}) == 1
        assert values(optimizer, "k") == [seed + 1] * 3


def test_copies_keep_one_tensor_for_all_groups() -> None:
    optimizer = PRODIGY(three_groups(parameters()))
    step(optimizer, 1)
    for each in copies(optimizer):
        step(each, 2)
        assert each.param_groups[0]["k"] is each.param_groups[2]["k"]
        assert values(each, "k") == [2.0] * 3
    assert values(optimizer, "k") == [1.0] * 3


@pytest.mark.parametrize("value", [7, 7.0, torch.tensor([7.0], dtype=torch.float32)])
@pytest.mark.parametrize("index", [0, 2])
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_state_that_is_set_in_one_group_is_set_in_all(
    lowering: str, index: int, value: Any
) -> None:
    optimizer = PRODIGY(three_groups(parameters()))
    with use_lowering(lowering):
        for seed in (1, 2):
            step(optimizer, seed)
        optimizer.param_groups[index]["k"] = value
        for seed in (3, 4):
            step(optimizer, seed)
    assert values(optimizer, "k") == [9.0] * 3


def test_different_values_set_in_two_groups_are_refused() -> None:
    optimizer = PRODIGY(three_groups(parameters()))
    step(optimizer, 1)
    before = copy.deepcopy(optimizer.param_groups)
    optimizer.param_groups[0]["k"], optimizer.param_groups[2]["k"] = 7, 8
    with pytest.raises(ValueError, match="one number for all groups, and group 0 has 7, group 2"):
        step(optimizer, 2)
    for group, old in zip(optimizer.param_groups, before, strict=True):
        assert all(map(torch.equal, group["params"], old["params"]))
    optimizer.param_groups[0]["k"] = 8
    step(optimizer, 2)
    assert values(optimizer, "k") == [9.0] * 3


def test_a_group_that_is_added_later_gets_the_states_of_all() -> None:
    params = parameters()
    optimizer = PRODIGY(params[:2])
    step(optimizer, 1)
    optimizer.add_param_group({"params": params[2:4]})
    assert values(optimizer, "k") == [1.0, 1.0]
    with pytest.raises(ValueError, match="k is one number for all groups, and group 0 has 1"):
        optimizer.add_param_group({"params": params[4:], "k": 5})
    assert len(optimizer.param_groups) == 2
    options = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    optimizer.add_param_group({"params": params[4:], **options})
    step(optimizer, 2)
    assert values(optimizer, "k") == [2.0] * 3


def test_the_constructor_takes_a_state_from_the_first_group() -> None:
    first, second, third = three_groups(parameters())
    optimizer = PRODIGY([first | {"d": 0.5}, second, third | {"d": torch.tensor([0.5])}])
    assert values(optimizer, "d") == [0.5] * 3
    first, second, third = three_groups(parameters())
    with pytest.raises(ValueError, match="group 0 has 1e-06, group 2 has 4:"):
        PRODIGY([first, second, third | {"d": 4}])


def checkpoint_with_states_by_group(optimizer: Any, *states: dict[str, float]) -> Any:
    """Return a checkpoint in which each group has values of its own, as older versions wrote it."""
    checkpoint = copy.deepcopy(optimizer.state_dict())
    for group, own in zip(checkpoint["param_groups"], states, strict=True):
        group.update({key: torch.tensor(value, dtype=torch.float64) for key, value in own.items()})
    return checkpoint


START = {"k": 0.0, "d": 1e-6, "d_max": 1e-6, "d_numerator": 0.0}
MOVED = {"k": 9.0, "d": 0.25, "d_max": 0.5, "d_numerator": 3.0}


@pytest.mark.parametrize("states", [(START, MOVED, START), (MOVED, START, MOVED | {"k": 4.0})])
def test_old_checkpoints_with_states_of_each_group_load(states: Any) -> None:
    """The first group that has left its start gives its values to all, and a warning says so."""
    optimizer = PRODIGY(three_groups(parameters()))
    step(optimizer, 1)
    checkpoint = checkpoint_with_states_by_group(optimizer, *states)
    with pytest.warns(UserWarning, match=f"takes those of group {states.index(MOVED)}, the first"):
        optimizer.load_state_dict(checkpoint)
    for key, value in MOVED.items():
        assert values(optimizer, key) == [value] * 3
    step(optimizer, 2)
    assert values(optimizer, "k") == [10.0] * 3


def test_checkpoints_in_which_groups_agree_load_without_a_warning() -> None:
    """Groups of the authors' packages hold plain numbers; a sharded checkpoint splits tensors."""
    optimizer = PRODIGY(three_groups(parameters()))
    step(optimizer, 1)
    plain = checkpoint_with_states_by_group(optimizer, MOVED, MOVED, MOVED)
    for group in plain["param_groups"]:
        group.update(MOVED)
    for checkpoint in (checkpoint_with_states_by_group(optimizer, *[MOVED] * 3), plain):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer.load_state_dict(checkpoint)
        step(optimizer, 2)
        assert values(optimizer, "k") == [10.0] * 3
        assert optimizer.param_groups[0]["k"] is optimizer.param_groups[1]["k"]


def test_a_checkpoint_with_no_number_loads_and_the_step_refuses_it() -> None:
    optimizer = PRODIGY(three_groups(parameters()))
    checkpoint = checkpoint_with_states_by_group(optimizer, MOVED, MOVED, MOVED)
    checkpoint["param_groups"][1]["d"] = "7"
    optimizer.load_state_dict(checkpoint)
    with pytest.raises(TypeError, match="d of a group must be a number, not '7'"):
        step(optimizer, 1)


@pytest.mark.parametrize("cls", [Prodigy, DAdaptAdam])
def test_different_rates_are_refused_and_rates_of_0_are_not(cls: Any) -> None:
    params = parameters()
    first, second, third = three_groups(params)
    message = "one lr for all groups: group 0 has 1.0, and group 2 has 4.0"
    with pytest.raises(RuntimeError, match=message):
        cls([first, second | {"lr": 0.0}, third | {"lr": 4.0}])
    optimizer = cls([first, second | {"lr": 0.0}])
    with pytest.raises(RuntimeError, match=message):
        optimizer.add_param_group(third | {"lr": torch.tensor(4.0)})
    assert len(optimizer.param_groups) == 2
    with pytest.raises(RuntimeError, match="one betas for all groups"):
        optimizer.add_param_group(third | {"betas": (0.8, 0.999)})
    optimizer.add_param_group(third | {"betas": [0.9, 0.999], "lr": 1})


@pytest.mark.parametrize("steps_before", [0, 1, 3])
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_step_with_different_rates_changes_nothing(lowering: str, steps_before: int) -> None:
    params = parameters()
    optimizer = PRODIGY(three_groups(params))
    for seed in range(steps_before):
        with use_lowering(lowering):
            step(optimizer, seed)
    optimizer.param_groups[1]["lr"] = 0.5
    before = [param.detach().clone() for param in params]
    keys = list(map(len, optimizer.state.values()))
    with use_lowering(lowering), pytest.raises(RuntimeError, match=r"group 1 has 0\.5; give all"):
        step(optimizer, 9)
    assert all(map(torch.equal, params, before))
    assert list(map(len, optimizer.state.values())) == keys
    optimizer.param_groups[1]["lr"] = 1.0
    with use_lowering(lowering):
        step(optimizer, 9)
    assert values(optimizer, "k") == [steps_before + 1] * 3


def test_a_schedule_moves_the_rates_of_all_groups() -> None:
    """The rates differ between groups only while the scheduler writes them."""
    optimizer = PRODIGY(three_groups(parameters()))
    scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for seed in range(4):
        step(optimizer, seed)
        scheduler.step()
    assert values(optimizer, "k") == [4.0] * 3
    assert values(optimizer, "lr") == [0.2] * 3


def test_layers_cannot_have_rates_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with pytest.raises(RuntimeError, match="Prodigy takes one lr for all groups"):
        create_optimizer(model, "prodigy", lr=1.0, layer_decay=0.5)
    assert len(create_optimizer(model, "prodigy", lr=1.0, weight_decay=0.1).param_groups) == 2
