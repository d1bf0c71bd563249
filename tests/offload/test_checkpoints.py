"""Test checkpoints: in torch's format, between offloaded and other optimizers, and bit for bit."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from offload.scripts import network
from offload.training import assert_equal, master, offloaded, pair, train
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import optgen.optim


def reloaded(saved: Any) -> Any:
    """Return what a checkpoint's file holds."""
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def cpu_weights(model: Any) -> Any:
    return {key: value.cpu() for key, value in model.state_dict().items()}


@pytest.mark.parametrize("rule", ["adamw", "sgd", "adafactor"])
@pytest.mark.parametrize("weights_first", [True, False])
def test_a_training_goes_on_bit_for_bit(rule: str, weights_first: bool, sim: Any) -> None:
    ours, optimizer, theirs, reference = pair(rule)
    train(ours, optimizer)
    saved = reloaded((cpu_weights(ours), optimizer.state_dict()))
    model = network("sim")
    resumed = offloaded(model, rule, lr=1.0)
    loads = [lambda: model.load_state_dict(saved[0]), lambda: resumed.load_state_dict(saved[1])]
    for load in loads if weights_first else reversed(loads):
        load()
    train(model, resumed, 3, first=3)
    train(theirs, reference, 6)

    assert_equal(model, theirs)


@pytest.mark.parametrize(
    ("rule", "saved_option", "own_option"),
    [
        ("adamw", {"amsgrad": True}, {}),
        ("adamw", {}, {"amsgrad": True}),
        ("sgd", {"momentum": 0.9}, {}),
        ("sgd", {}, {"momentum": 0.9}),
    ],
)
def test_options_that_ask_for_other_states(
    rule: str, saved_option: dict[str, Any], own_option: dict[str, Any], sim: Any
) -> None:
    """The states are those of the checkpoint, in no other number."""
    source, ours, theirs = network(), network("sim"), network()
    saving = master(rule)(source.parameters(), lr=1e-2, **saved_option)
    train(source, saving)
    optimizer = offloaded(ours, rule, **own_option)
    reference = master(rule)(theirs.parameters(), lr=1e-2, **own_option)
    for model, each in ((ours, optimizer), (theirs, reference)):
        train(model, each, 1)
        model.load_state_dict(source.state_dict())
        each.load_state_dict(copy.deepcopy(saving.state_dict()))
        keys = {key for state in each.state_dict()["state"].values() for key in state}
        assert keys == {key for state in saving.state_dict()["state"].values() for key in state}
        train(model, each, 2)
        each.param_groups[0].update(own_option)
        train(model, each, 2)

    assert_equal(ours, theirs)


def test_a_load_that_fails_changes_nothing(sim: Any) -> None:
    """Also if the options of the checkpoint ask for another state, which does not fit."""
    source, model = network(), network("sim")
    saving = master("adamw")(source.parameters(), lr=1e-2, amsgrad=True)
    train(source, saving)
    optimizer = offloaded(model)
    train(model, optimizer, 1)
    before, wrong = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(saving.state_dict())
    wrong["state"][1]["max_exp_avg_sq"] = torch.ones(3)
    with pytest.raises(ValueError, match=r"the state 'max_exp_avg_sq' of 0\.bias has the shape"):
        optimizer.load_state_dict(wrong)
    after = optimizer.state_dict()

    assert after["param_groups"] == before["param_groups"]
    for index, state in before["state"].items():
        assert after["state"][index].keys() == state.keys()
        assert all(torch.equal(after["state"][index][key], value) for key, value in state.items())


def test_the_composition_goes_on(sim: Any) -> None:
    ours, optimizer, theirs, reference = pair()
    train(ours, optimizer)
    model = network()
    resumed = master("adamw")(model.parameters(), lr=1.0)
    resumed.load_state_dict(reloaded(optimizer.state_dict()))
    model.load_state_dict(cpu_weights(ours))
    train(model, resumed, 3, first=3)
    train(theirs, reference, 6)

    assert_equal(model, theirs)


@pytest.mark.parametrize("library", [torch.optim, optgen.optim])
def test_a_plain_checkpoint_is_loaded(library: Any, sim: Any) -> None:
    """The float32 weights begin as the parameters."""
    source = network()
    plain = library.AdamW(source.parameters(), lr=1e-2)
    train(source, plain)
    ours, optimizer, theirs, reference = pair()
    for model, each in ((ours, optimizer), (theirs, reference)):
        model.load_state_dict(source.state_dict())
        each.load_state_dict(copy.deepcopy(plain.state_dict()))
        train(model, each, 3, first=3)

    assert_equal(ours, theirs)


def test_the_plain_class_loads_an_offloaded_checkpoint(sim: Any) -> None:
    ours, optimizer, *_ = pair()
    train(ours, optimizer)
    model = network()
    plain = optgen.optim.AdamW(model.parameters())
    plain.load_state_dict(optimizer.state_dict())
    train(model, plain, 1)

    assert float(plain.state[next(model.parameters())]["step"]) == 4


def test_names_are_in_the_checkpoint(sim: Any) -> None:
    model = network("sim")
    with offloaded(model) as optimizer:
        names = optimizer.state_dict()["param_groups"][0]["param_names"]

    assert names == [name for name, _ in model.named_parameters()]


def test_a_state_of_another_shape_is_refused_and_changes_nothing(sim: Any) -> None:
    ours, optimizer, theirs, reference = pair()
    train(ours, optimizer, 1)
    wrong = copy.deepcopy(optimizer.state_dict())
    wrong["state"][3]["exp_avg"] = torch.zeros(2)
    wrong["param_groups"][0]["lr"] = 7.0
    with pytest.raises(ValueError, match=r"the state 'exp_avg' of 2\.bias has the shape"):
        optimizer.load_state_dict(wrong)
    train(ours, optimizer, 2, first=1)
    train(theirs, reference)

    assert_equal(ours, theirs)


def test_load_hooks_run(sim: Any) -> None:
    model, calls = network("sim"), list[str]()
    with offloaded(model) as optimizer:
        optimizer.register_load_state_dict_pre_hook(lambda *args: calls.append("before"))
        optimizer.register_load_state_dict_post_hook(lambda *args: calls.append("after"))
        optimizer.load_state_dict(optimizer.state_dict())

    assert calls == ["before", "after"]


@pytest.mark.parametrize("change", ["in place", "through data"])
def test_weights_that_are_changed_count(change: str, sim: Any) -> None:
    """The float32 weights must not bring the old weights back."""
    ours, optimizer, theirs, reference = pair()
    for model, each in ((ours, optimizer), (theirs, reference)):
        train(model, each, 2)
        first = next(model.parameters())
        if change == "in place":
            with torch.no_grad():
                first.fill_(3.0)
        else:
            first.data.fill_(3.0)
            getattr(each, "refresh_masters", lambda: None)()
        train(model, each, 2, first=2)

    assert_equal(ours, theirs)


@pytest.mark.parametrize("hide", ["nothing", "backward"])
@pytest.mark.parametrize("rule", ["sgd", "adagrad", "schedule_free_sgd"])
@pytest.mark.filterwarnings("ignore")  # torch's, about the process group that there is not
def test_distributed_checkpoints_of_one_process(
    rule: str, hide: str, sim: Any, tmp_path: Path
) -> None:
    """torch asks for all states before the first step, also for momentum that this step makes."""
    options: dict[str, Any] = {"momentum": 0.9, "dampening": 0.5} if rule == "sgd" else {}
    if hide == "backward":
        options.update(gradients="leave", clip_norm=None, hide=hide)
    first, second, asked = network("sim"), network("sim", seed=1), network("sim")
    saving, resumed, other = (offloaded(model, rule, **options) for model in (first, second, asked))
    train(first, saving, 2)
    kept = dict(zip(("model", "optimizer"), get_state_dict(first, saving), strict=True))
    checkpoint.save(kept, checkpoint_id=tmp_path, no_dist=True)
    loaded = dict(zip(("model", "optimizer"), get_state_dict(second, resumed), strict=True))
    checkpoint.load(loaded, checkpoint_id=tmp_path, no_dist=True)
    set_state_dict(
        second,
        resumed,
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optimizer"],
    )
    get_state_dict(asked, other)  # and nothing is loaded
    train(first, saving, 2, first=2)
    train(second, resumed, 2, first=2)
    train(asked, other, 4)

    assert_equal(first, second)
    assert_equal(first, asked)
