"""Test states of compositions: their keys, checkpoints, and runs that get or lose a modifier."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from composition.training import (
    BOUND,
    SHAPES,
    SHAPES_UP_TO_2D,
    difference,
    give_gradients,
    parameters,
    params_and_lrs,
    two_groups,
)

import optgen
from optgen import optim
from optgen.compositions import compose, list_modifiers, modifier
from optgen.spec.declare import hypers_of

ADAM = ("step", "exp_avg", "exp_avg_sq")
ADDED_KEYS = {
    "accumulate": ("grad_sum", "summed_gradients", "calls_between_steps"),
    "amsgrad": ("largest_second_moment",),
    "ema": ("ema",),
    "ema_nesterov": ("last_weights", "mean_move"),
    "gradient_noise": ("noise_stream",),
    "kahan": ("compensation",),
    "lookahead": ("slow",),
    "low_precision_copy": ("low_precision",),
    "master": ("master",),
    "schedule_free": ("z", "lr_max", "weight_sum"),
    "skip_nonfinite": ("skipped_steps",),
    "stochastic_rounding": ("stream",),
}
"""State keys that a modifier adds for each parameter; modifiers not listed add none."""
ADDED_GROUP_KEYS = {"clip_norm": ("grad_norm",), "schedule_free": ("compensate_average",)}


def new_optimizer(*names: str) -> Any:
    """Return AdamW with modifiers, or plain AdamW."""
    cls: Any = compose(optim.AdamW, *map(modifier, names)) if names else optim.AdamW
    return cls(two_groups(parameters(shapes_for(*names))))


def shapes_for(*names: str) -> Any:
    """Return shapes of parameters that these modifiers accept."""
    return SHAPES_UP_TO_2D if {"centralize", "adaptive_clip"} & set(names) else SHAPES


def train(optimizer: Any, *seeds: int) -> None:
    for seed in seeds:
        give_gradients((param for param, _ in params_and_lrs(optimizer)), seed)
        optimizer.step()


def values(optimizer: Any) -> list[torch.Tensor]:
    return [param.detach() for param, _ in params_and_lrs(optimizer)]


def load_into(optimizer: Any, fresh: Any) -> Any:
    """Load the checkpoint and the weights of `optimizer` into `fresh`, and return `fresh`."""
    buffer = io.BytesIO()
    torch.save((optimizer.state_dict(), values(optimizer)), buffer)
    buffer.seek(0)
    state, weights = torch.load(buffer)
    fresh.load_state_dict(state)
    for (param, _), value in zip(params_and_lrs(fresh), weights, strict=True):
        param.data.copy_(value)
    return fresh


@pytest.mark.parametrize("name", list_modifiers())
def test_a_modifier_adds_state_and_group_keys(name: str) -> None:
    optimizer = new_optimizer(name)
    train(optimizer, 0)
    for state in optimizer.state.values():
        assert set(state) == {*ADAM, *ADDED_KEYS.get(name, ())}
    for group in optimizer.param_groups:
        arguments = {argument for argument, _ in hypers_of(modifier(name).spec)}
        mode = {"train_mode"} if name in ("ema", "ema_nesterov", "schedule_free") else set()
        added = {*ADDED_GROUP_KEYS.get(name, ()), *arguments, *mode}
        assert set(group) - set(new_optimizer().param_groups[0]) == added


@pytest.mark.parametrize("name", list_modifiers())
def test_training_continues_from_a_checkpoint(name: str) -> None:
    optimizer = new_optimizer(name)
    train(optimizer, 0, 1, 2)
    restored = load_into(optimizer, new_optimizer(name))
    train(optimizer, 3, 4, 5, 6)
    train(restored, 3, 4, 5, 6)
    assert all(map(torch.equal, values(optimizer), values(restored)))


@pytest.mark.parametrize("name", ["ema", "ema_nesterov", "schedule_free"])
def test_training_continues_from_a_checkpoint_of_eval_mode(name: str) -> None:
    optimizer = new_optimizer(name)
    train(optimizer, 0, 1, 2)
    optimizer.eval()
    restored = load_into(optimizer, new_optimizer(name))
    for each in (optimizer, restored):
        each.train()
        train(each, 3, 4)
    assert all(map(torch.equal, values(optimizer), values(restored)))


@pytest.mark.parametrize("name", list_modifiers())
def test_a_run_gets_a_modifier(name: str) -> None:
    """The checkpoint's states are loaded, and states of the modifier get their initial values."""
    plain: Any = optim.AdamW(two_groups(parameters(shapes_for(name))))
    train(plain, 0, 1, 2)
    composed = load_into(plain, new_optimizer(name))
    moments = [composed.state[param]["exp_avg"] for param, _ in params_and_lrs(composed)]
    assert difference(moments, (plain.state[p]["exp_avg"] for p, _ in params_and_lrs(plain))) == 0
    assert all(set(state) == {*ADAM} for state in composed.state.values())
    train(composed, 3)
    for state in composed.state.values():
        assert set(state) == {*ADAM, *ADDED_KEYS.get(name, ())}
        assert state["step"].item() == 4


def test_a_run_gets_an_average() -> None:
    """The average starts as the weights after the first step with the modifier."""
    plain = new_optimizer()
    train(plain, 0, 1, 2)
    composed = load_into(plain, new_optimizer("ema"))
    train(composed, 3)
    train(plain, 3)
    assert all(map(torch.equal, values(composed), values(plain)))
    averages = [composed.state[param]["ema"] for param, _ in params_and_lrs(composed)]
    assert all(map(torch.equal, averages, values(plain)))


@pytest.mark.parametrize("name", ["ema", "clip_value", "low_precision_copy"])
def test_a_run_loses_a_modifier(name: str) -> None:
    """Plain AdamW continues from the moments, whatever else the checkpoint has."""
    composed = new_optimizer(name)
    train(composed, 0, 1, 2)
    plain = load_into(composed, new_optimizer())
    by_hand = torch.optim.AdamW(two_groups(parameters()))
    for (param, _), (other, _) in zip(
        params_and_lrs(composed), params_and_lrs(by_hand), strict=True
    ):
        other.data.copy_(param)
        by_hand.state[other] = {key: composed.state[param][key].clone() for key in ADAM}
    train(plain, 3, 4)
    train(by_hand, 3, 4)
    assert difference(values(plain), values(by_hand)) < BOUND
    assert {state["step"].item() for state in plain.state.values()} == {5}


def test_a_run_gets_skips_of_nonfinite_gradients() -> None:
    plain = new_optimizer()
    train(plain, *range(20))
    composed = load_into(plain, new_optimizer("skip_nonfinite"))
    train(composed, 20)
    train(plain, 20)
    assert difference(values(composed), values(plain)) < BOUND


def test_a_composition_can_be_composed() -> None:
    once: Any = compose(optim.AdamW, modifier("clip_norm")(0.5), modifier("ema"))
    twice: Any = compose(compose(optim.AdamW, modifier("ema")), modifier("clip_norm")(0.5))
    optimizers = [cls(two_groups(parameters())) for cls in (once, twice)]
    for optimizer in optimizers:
        train(optimizer, 0, 1)
    assert all(map(torch.equal, *map(values, optimizers)))


def test_every_group_has_the_norm_of_all_gradients_before_clipping() -> None:
    optimizer = new_optimizer("clip_norm")
    train(optimizer, 1)
    grads = [param.grad for param, _ in params_and_lrs(optimizer) if param.grad is not None]
    expected = torch.nn.utils.get_total_norm(grads)
    for group in optimizer.param_groups:
        torch.testing.assert_close(group["grad_norm"], expected, rtol=1e-12, atol=0)


def test_modifiers_keep_their_arguments_in_groups() -> None:
    cls: Any = compose(optim.AdamW, modifier("clip_value")(0.5), modifier("decoupled_decay"))
    groups = two_groups(parameters())
    groups[1]["max_value"] = 0.25
    optimizer = cls(groups, decay=0.3)
    assert [group["max_value"] for group in optimizer.param_groups] == [0.5, 0.25]
    assert [group["decay"] for group in optimizer.param_groups] == [0.3, 0.3]


def test_the_text_of_a_composition_loads_as_an_equal_optimizer() -> None:
    cls: Any = compose(optim.AdamW, modifier("ema"), modifier("clip_norm"))
    spec = optgen.spec.Spec(cls.__name__, cls.spec.source, "written.py", 1)
    optimizers = [each(two_groups(parameters())) for each in (cls, optgen.load(spec))]
    for optimizer in optimizers:
        train(optimizer, 0, 1)
    assert all(map(torch.equal, *map(values, optimizers)))


def test_compose_is_a_function_after_the_modifiers_are_imported() -> None:
    code = "import optgen; from optgen import modifiers; assert callable(optgen.compose)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize("name", ["Muon", "Adafactor"])
def test_rules_with_matrices_and_rows_can_be_composed(name: str) -> None:
    compose(getattr(optim, name), modifier("clip_norm"))


@pytest.mark.parametrize("name", ["clip_norm", "ema", "schedule_free"])
def test_copies_train_like_the_original(name: str) -> None:
    optimizer = new_optimizer(name)
    train(optimizer, 0, 1)
    copies = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    for each in (optimizer, *copies):
        train(each, 2, 3)
    for each in copies:
        assert all(map(torch.equal, values(optimizer), values(each)))


def test_equal_modifiers_make_the_same_class() -> None:
    parts = (modifier("clip_norm")(0.5), modifier("ema"))
    assert compose(optim.AdamW, *parts) is compose("adamw", *parts)


def test_a_run_gets_accumulation() -> None:
    """The first step uses the mean of the gradients summed since the checkpoint was loaded."""
    param = torch.zeros(3, requires_grad=True)
    plain: Any = optim.Adam([param], betas=(0.0, 0.9))
    for _ in range(6):
        param.grad = torch.ones_like(param)
        plain.step()
    composed: Any = compose("adam", modifier("accumulate")(4))([param])
    composed.load_state_dict(plain.state_dict())
    before = param.detach().clone()
    while torch.equal(param, before):
        param.grad = torch.ones_like(param)
        composed.step()
    assert composed.state[param]["exp_avg"].tolist() == [1.0] * 3


def test_accumulated_steps_can_change_during_accumulation() -> None:
    param = torch.zeros(3, requires_grad=True)
    optimizer: Any = compose("sgd", modifier("accumulate")(4))([param], lr=1.0)
    for call in range(4):
        optimizer.param_groups[0]["accumulated_steps"] = 4 if call < 3 else 2
        param.grad = torch.ones_like(param)
        optimizer.step()
    torch.testing.assert_close(param.detach(), -torch.ones(3))
