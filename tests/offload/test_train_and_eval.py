"""Test rules with `train()` and `eval()`: bits of the composition in both modes, at any timing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from offload.scripts import network
from offload.test_checkpoints import cpu_weights, reloaded
from offload.training import assert_equal, backward, master, offloaded, stalled, train
from torch import nn

import optgen
from optgen import compose, modifiers
from optgen.offloading import OffloadError

RULES: dict[str, Callable[[], Any]] = {
    "schedule_free_adamw": lambda: "schedule_free_adamw",
    "schedule_free_sgd": lambda: "schedule_free_sgd",
    "ema": lambda: compose("adamw", modifiers.ema(ema_decay=0.7)),
    "ema_nesterov": lambda: compose("adamw", modifiers.ema_nesterov),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "forward": {"hide": "forward"},
    "leave": {"gradients": "leave", "clip_norm": None, "accumulation": 1},
    "backward": {"gradients": "leave", "clip_norm": None, "hide": "backward"},
    "pieces": {"bucket_bytes": 128},
}
SLOW = {"latency": 0.001, "jitter": 0.002, "compute": 0.0002}


def both(rule: str, **options: Any) -> list[tuple[Any, Any]]:
    """Return an offloaded model and one on the CPU, each with its optimizer."""
    made = RULES[rule]()
    ours, theirs = network("sim"), network()
    if options.get("hide") == "forward":
        options["module"] = ours
    optimizer = offloaded(ours, made, **options)
    return [(ours, optimizer), (theirs, master(made)(theirs.parameters(), lr=1e-2))]


def assert_same_states(pairs: list[tuple[Any, Any]]) -> None:
    """Check that both have the same weights and states."""
    (ours, optimizer), (theirs, reference) = pairs
    assert_equal(ours, theirs)
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        for key, value in reference.state[other].items():
            assert torch.equal(optimizer.state[own][key], value), key


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("options", OPTIONS)
def test_bits_in_both_modes(options: str, rule: str, sim: Any) -> None:
    sim.configure(**SLOW)
    pairs = both(rule, **OPTIONS[options])
    for first in (0, 2, 4):
        for model, optimizer in pairs:
            train(model, optimizer, 2, first=first)
            optimizer.eval()
            optimizer.eval()
        assert_same_states(pairs)
        for _, optimizer in pairs:
            optimizer.train()
        assert_same_states(pairs)
    pairs[0][1].close()


def test_weights_of_32_bits(sim: Any) -> None:
    """Here nothing is rounded, so nothing is kept."""
    values = torch.linspace(-1, 1, 300)
    params = [nn.Parameter(values.clone().to(kind)) for kind in ("sim", "cpu")]
    ours = optgen.offload("schedule_free_adamw", params[:1], keep_on_device=0, bucket_bytes=256)
    theirs = master("schedule_free_adamw")(params[1:], lr=2.5e-3)
    for number in range(4):
        for param, optimizer in zip(params, (ours, theirs), strict=True):
            optimizer.train()
            param.grad = (values * number).cos().to(param.device)
            optimizer.step()
            optimizer.eval()
        assert torch.equal(params[0].detach().cpu(), params[1].detach())
    ours.close()


@pytest.mark.parametrize("rule", ["schedule_free_adamw", "ema"])
def test_weights_that_change_in_eval_mode_count(rule: str, sim: Any) -> None:
    pairs = both(rule)
    for model, optimizer in pairs:
        train(model, optimizer, 2)
        optimizer.eval()
        with torch.no_grad():
            next(model.parameters()).mul_(0.5)
        optimizer.train()
        train(model, optimizer, 2, first=2)
    assert_same_states(pairs)


@pytest.mark.parametrize("rule", ["schedule_free_sgd", "ema"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_checkpoints_of_both_modes(mode: str, rule: str, sim: Any) -> None:
    """One from the eval mode goes on as the composition does that loads the same."""
    ((model, optimizer), _) = both(rule)
    train(model, optimizer)
    getattr(optimizer, mode)()
    saved = reloaded((cpu_weights(model), optimizer.state_dict()))
    assert saved[1]["param_groups"][0]["train_mode"] is (mode == "train")
    pairs = both(rule)
    for other, resumed in pairs:
        other.load_state_dict(saved[0])
        resumed.load_state_dict(copy.deepcopy(saved[1]))
        resumed.train()
        train(other, resumed, 2, first=3)
    assert_same_states(pairs)


def test_a_load_forgets_what_eval_has_kept(sim: Any) -> None:
    pairs = both("ema")
    for model, optimizer in pairs:
        train(model, optimizer, 2)
        optimizer.eval()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizer.train()
        train(model, optimizer, 2, first=2)
    assert_same_states(pairs)


def test_some_groups_and_small_parameters(sim: Any) -> None:
    """A group that is in the mode already stays as it is; the device changes small parameters."""
    ours, theirs = network("sim"), network()
    made = []
    for model, cls, options in (
        (ours, optgen.offload, {"keep_on_device": 24}),
        (theirs, lambda _, *args, **kwargs: master("schedule_free_sgd")(*args, **kwargs), {}),
    ):
        groups = [{"params": [p], "lr": 0.01 * (i + 1)} for i, p in enumerate(model.parameters())]
        made.append((model, cls("schedule_free_sgd", groups, **options)))
    for model, optimizer in made:
        train(model, optimizer, 2)
        optimizer.param_groups[0]["train_mode"] = False
        optimizer.eval()
    assert len(made[0][1]._small.params) == 4
    assert_equal(ours, theirs)
    for _, optimizer in made:
        optimizer.param_groups[1]["train_mode"] = True
        optimizer.train()
        assert all(group["train_mode"] for group in optimizer.param_groups)
    assert_equal(ours, theirs)


def test_what_eval_mode_refuses(sim: Any) -> None:
    ((model, optimizer), _) = both("ema")
    train(model, optimizer, 1)
    optimizer.eval()
    param = nn.Parameter(torch.ones(64, device="sim"))
    for call in (
        optimizer.step,
        optimizer.refresh_masters,
        lambda: optimizer.add_param_group({"params": [("new", param)]}),
    ):
        with pytest.raises(RuntimeError, match=r"in eval mode: call train\(\) of the optimizer"):
            call()
    optimizer.train()
    train(model, optimizer, 1)


def test_a_backward_pass_takes_no_steps_in_eval_mode(sim: Any) -> None:
    pairs = both("ema", **OPTIONS["backward"])
    for model, optimizer in pairs:
        train(model, optimizer, 2)
        optimizer.eval()
    with pytest.raises(RuntimeError, match=r"step in eval mode: call train\(\)"):
        backward(pairs[0][0])
    pairs[0][1].zero_grad()
    for model, optimizer in pairs:
        optimizer.train()
        train(model, optimizer, 2, first=2)
    assert_same_states(pairs)


def test_a_device_that_stalls_in_eval(sim: Any) -> None:
    ((model, optimizer), _) = both("ema")
    train(model, optimizer, 1)
    message = r"'copy of weights to the host', at .* for 1 s"
    with stalled(sim, optimizer), pytest.raises(OffloadError, match=message):
        optimizer.eval()
    assert all(group["train_mode"] for group in optimizer.param_groups)
    with pytest.raises(OffloadError):
        optimizer.step()


def test_other_rules_have_no_modes(sim: Any) -> None:
    with offloaded(network("sim")) as optimizer:
        assert not hasattr(optimizer, "eval")
