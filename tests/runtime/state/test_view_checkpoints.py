"""Test checkpoints of groups with a view: a load sets the view; states of others are refused."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from spec_files import spec_file
from torch import Tensor
from torch.nn import Parameter

import optgen
from optgen import use_lowering
from optgen.optim import Adafactor, AdamW, Muon

LOWERINGS = ("forloop", "foreach", "fused_cpu")
START = torch.linspace(-1, 2, 48, dtype=torch.float64).reshape(6, 8)


def new_optimizer(cls: Any = Adafactor, **group: Any) -> tuple[Tensor, Any]:
    """Return a parameter and its optimizer, with a second group that has no view."""
    param, other = Parameter(START.clone()), Parameter(torch.ones(3, dtype=torch.float64))
    without_view = [] if cls is Muon else [{"params": [other]}]
    return param, cls([{"params": [param], **group}, *without_view], lr=0.1)


def train(param: Tensor, optimizer: Any, steps: int, start: int = 0) -> None:
    for step in range(start, start + steps):
        for group in optimizer.param_groups:
            for each in group["params"]:
                each.grad = torch.cos(each.detach() * (step + 1))
        optimizer.step()


def saved_and_loaded(checkpoint: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Save a checkpoint to a file, and return what is loaded from the file."""
    torch.save(checkpoint, folder / "checkpoint.pt")
    return torch.load(folder / "checkpoint.pt", weights_only=True)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("earlier_options", [{"view": (2, 3, -1)}, {"view": (3, 16)}, {}], ids=str)
def test_training_goes_on_with_the_checkpoints_view(
    lowering: str, earlier_options: dict[str, Any], tmp_path: Path
) -> None:
    """The checkpoint's view replaces the view that the group had before."""
    with use_lowering(lowering):
        uninterrupted, optimizer = new_optimizer(view=(2, 3, -1))
        train(uninterrupted, optimizer, 3)
        saved = saved_and_loaded(optimizer.state_dict(), tmp_path)
        weights = uninterrupted.detach().clone()
        train(uninterrupted, optimizer, 3, start=3)
        resumed, loaded = new_optimizer(**earlier_options)
        train(resumed, loaded, 2)
        loaded.load_state_dict(saved)
        with torch.no_grad():
            resumed.copy_(weights)
        assert loaded.param_groups[0]["view"] == (2, 3, -1)
        assert "view" not in loaded.param_groups[1]
        loaded.param_groups[1]["params"][0].data.copy_(optimizer.param_groups[1]["params"][0])
        train(resumed, loaded, 3, start=3)

    assert torch.equal(uninterrupted, resumed)
    for key, value in optimizer.state[uninterrupted].items():
        assert torch.equal(value, loaded.state[resumed][key])


def test_a_checkpoint_has_the_view_and_states_of_its_shape() -> None:
    param, optimizer = new_optimizer(view=(2, 3, -1))
    train(param, optimizer, 1)
    packed = optimizer.state_dict()

    assert [group.get("view") for group in packed["param_groups"]] == [(2, 3, -1), None]
    shapes = {key: tuple(value.shape) for key, value in packed["state"][0].items()}
    assert shapes == {"step": (), "row_var": (2, 3, 1), "col_var": (2, 1, 8)}


def test_groups_without_a_view_have_torchs_keys() -> None:
    ours, theirs = Parameter(START.clone()), Parameter(START.clone())
    optimizer, reference = AdamW([ours]), torch.optim.AdamW([theirs])
    assert list(optimizer.param_groups[0]) == list(reference.param_groups[0])
    assert "view" not in optimizer.defaults
    _, viewed = new_optimizer(AdamW, view=(2, -1))
    assert [list(g) for g in viewed.param_groups[1:]] == [list(reference.param_groups[0])]


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_load_of_a_checkpoint_without_a_view_keeps_the_groups_view(
    lowering: str, tmp_path: Path
) -> None:
    """Muon's momentum has the parameter's shape, so a group with any view can load it."""
    with use_lowering(lowering):
        param, optimizer = new_optimizer(Muon)
        train(param, optimizer, 2)
        other, viewed = new_optimizer(Muon, view=(12, 4))
        viewed.load_state_dict(saved_and_loaded(optimizer.state_dict(), tmp_path))
        assert viewed.param_groups[0]["view"] == (12, 4)
        momentum = optimizer.state[param]["momentum_buffer"]
        assert torch.equal(viewed.state[other]["momentum_buffer"], momentum)
        train(other, viewed, 1)
        assert viewed.state[other]["momentum_buffer"].shape == (6, 8)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("saved_options", [{}, {"view": (3, 2, 8)}], ids=str)
def test_row_and_column_states_of_another_view_are_refused(
    lowering: str, saved_options: dict[str, Any]
) -> None:
    with use_lowering(lowering):
        param, optimizer = new_optimizer(**saved_options)
        train(param, optimizer, 2)
        if saved_options:
            optimizer.param_groups[0]["view"] = (2, 3, 8)
        else:
            checkpoint = optimizer.state_dict()
            param, optimizer = new_optimizer(view=(2, 3, 8))
            optimizer.load_state_dict(checkpoint)
        before = param.detach().clone(), copy.deepcopy(optimizer.state[param])
        with pytest.raises(RuntimeError) as caught:
            train(param, optimizer, 1)
        shape = (3, 2, 1) if saved_options else (6, 1)
        assert str(caught.value) == (
            f"row_var has the shape {shape}, but its parameter (2, 3, 8): "
            "a state belongs to a parameter of one shape, as its group's view shows it; give the "
            "group the view that the state was made with, or clear the optimizer's state for the "
            "parameter"
        )
        assert torch.equal(param, before[0])
        assert {k: v.tolist() for k, v in optimizer.state[param].items()} == {
            k: v.tolist() for k, v in before[1].items()
        }
        optimizer.state.pop(param)
        train(param, optimizer, 1)


@pytest.mark.parametrize("view", [(5, -1), [2, 24], (2, 3, 9)], ids=str)
def test_a_load_of_a_view_that_does_not_fit_changes_nothing(view: Any) -> None:
    param, optimizer = new_optimizer(view=(2, 3, 8))
    train(param, optimizer, 2)
    wrong = copy.deepcopy(optimizer.state_dict())
    wrong["param_groups"][0] |= {"view": view, "lr": 7.0}
    wrong["state"][0]["step"] += 5
    before = optimizer.state_dict()
    objects_before = optimizer.param_groups, optimizer.state

    with pytest.raises(ValueError, match="group 0: view"):
        optimizer.load_state_dict(wrong)

    assert (optimizer.param_groups, optimizer.state) == objects_before
    assert optimizer.param_groups is objects_before[0]
    assert optimizer.state is objects_before[1]
    assert repr(optimizer.state_dict()) == repr(before)
    train(param, optimizer, 1)


def test_a_pickled_optimizer_keeps_the_view() -> None:
    param, optimizer = new_optimizer(view=(2, 3, 8))
    train(param, optimizer, 2)
    copied_param, other = pickle.loads(pickle.dumps((param, optimizer)))
    assert other.param_groups[0]["view"] == (2, 3, 8)
    for each in ((param, optimizer), (copied_param, other)):
        train(*each, 2)
    assert torch.equal(param, copied_param)


def test_init_state_makes_the_states_of_the_view() -> None:
    param = Parameter(START.clone())
    optimizer = optgen.load(spec_file("came"))([{"params": [param], "view": (4, -1)}])
    optimizer.init_state()
    shapes = {key: tuple(value.shape) for key, value in optimizer.state[param].items()}
    assert shapes["exp_avg"] == (6, 8)
    assert shapes["exp_avg_sq_row"] == (4, 1)
    assert shapes["exp_avg_sq_col"] == (1, 12)
