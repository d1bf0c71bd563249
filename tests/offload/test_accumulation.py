"""Test gradients on the host between backward passes: checkpoints, later groups, and the norm."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from offload.scripts import network
from offload.test_checkpoints import cpu_weights, reloaded
from offload.training import assert_equal, backward, offloaded, train
from torch import Tensor, nn

import optgen
from optgen.offloading.buckets import HostParam, divide
from optgen.offloading.gradient_sums import GradientSums

LEAVE: dict[str, Any] = {"gradients": "leave", "clip_norm": 0.05, "bucket_bytes": 512}


def accumulated(model: nn.Module, indices: range) -> None:
    for index in indices:
        backward(model, index)


@pytest.mark.parametrize("keep_on_device", [0, 24])
@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_a_checkpoint_within_an_accumulation(
    clip_norm: float | None, keep_on_device: int, sim: Any
) -> None:
    """The resumed training takes the same step, with the same norm."""
    sim.configure(latency=0.001, jitter=0.002)
    options = {**LEAVE, "clip_norm": clip_norm, "keep_on_device": keep_on_device}
    model = network("sim")
    optimizer = offloaded(model, **options)
    train(model, optimizer, 1)
    accumulated(model, range(1, 3))
    saved = reloaded((cpu_weights(model), optimizer.state_dict()))
    states = saved[1]["state"][0]
    assert (states["gradient_sum"].dtype, int(states["gradient_count"])) == (torch.float32, 2)

    other = network("sim")
    resumed = offloaded(other, **{**options, "lr": 1.0})
    backward(other)  # the load drops it
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    for each, stepping in ((model, optimizer), (other, resumed)):
        accumulated(each, range(3, 5))
        stepping.step()
        stepping.zero_grad()
        train(each, stepping, 2, first=5)
        stepping.synchronize()
    assert resumed.grad_norm == optimizer.grad_norm
    assert_equal(model, other)
    assert "gradient_sum" not in optimizer.state_dict()["state"][0]


def test_who_takes_no_sums_of_gradients(sim: Any) -> None:
    """Another choice of gradients= says so, and changes nothing. torch's class ignores them."""
    model = network("sim")
    optimizer = offloaded(model, **LEAVE)
    train(model, optimizer, 1)
    backward(model)
    saved = reloaded(optimizer.state_dict())
    for options in ({}, {**LEAVE, "clip_norm": None, "hide": "backward"}):
        other = network("sim")
        with offloaded(other, **options) as resumed:
            with pytest.raises(ValueError, match="saved between the backward passes of a step"):
                resumed.load_state_dict(saved)
            assert not resumed.state
    for cls in (torch.optim.AdamW, optgen.optim.AdamW):
        plain, same = network(), network()
        for each, states in ((plain, saved), (same, without_sums(saved))):
            loaded = cls(each.parameters())
            loaded.load_state_dict(copy.deepcopy(states))
            train(each, loaded, 2)
        assert_equal(plain, same)


def without_sums(saved: Any) -> Any:
    states = {
        index: {key: value for key, value in each.items() if not key.startswith("gradient_")}
        for index, each in saved["state"].items()
    }
    return {**saved, "state": states}


def test_a_sum_of_another_shape_is_refused(sim: Any) -> None:
    model = network("sim")
    with offloaded(model, **LEAVE) as optimizer:
        backward(model)
        saved = optimizer.state_dict()
        saved["state"][0]["gradient_sum"] = torch.zeros(3)
        with pytest.raises(ValueError, match="'gradient_sum' of a parameter of the shape"):
            optimizer.load_state_dict(saved)


def test_gradients_of_the_last_step_are_not_saved(sim: Any) -> None:
    """Those of small parameters are still in `.grad` before `zero_grad`."""
    model = network("sim")
    with offloaded(model, **{**LEAVE, "keep_on_device": 24}) as optimizer:
        backward(model)
        optimizer.step()
        saved = optimizer.state_dict()
    assert all("gradient_sum" not in states for states in saved["state"].values())


def test_a_load_that_builds_anew_within_an_accumulation(sim: Any) -> None:
    """Gradients from before the load count on, as those in `.grad` do with torch's optimizers."""
    made = []
    for momentum in (0.0, 0.9):
        model = network("sim")
        optimizer = offloaded(model, "sgd", momentum=momentum, **LEAVE)
        with offloaded(network("sim"), "sgd", momentum=0.9) as other:
            saved = other.state_dict()
        backward(model)
        optimizer.load_state_dict(saved)
        optimizer.step()
        optimizer.synchronize()
        made.append(model)
    assert_equal(*made)


def test_a_group_that_is_added_within_an_accumulation(sim: Any) -> None:
    """Gradients that have left before still count, also those in slots that are not full."""
    made = []
    for add_later in (False, True):
        model = network("sim")
        first, *others = model.named_parameters()
        optimizer = optgen.offload("adamw", [first], keep_on_device=0, lr=1e-2, **LEAVE)
        if not add_later:
            optimizer.add_param_group({"params": others})
        backward(model, 1)
        if add_later:
            for _, param in others:
                param.grad = None
            optimizer.add_param_group({"params": others})
            for _, param in others:
                param.grad = None
        else:
            counts = optimizer._stepper.host.collector.counts
            for _, param in others:
                del counts[param]
        backward(model, 2)
        optimizer.step()
        optimizer.synchronize()
        made.append((model, optimizer))
    assert made[0][1].grad_norm == made[1][1].grad_norm
    assert_equal(made[0][0], made[1][0])


def test_a_state_that_an_option_asks_for_within_an_accumulation(sim: Any) -> None:
    """Another machinery steps with the gradients that the earlier one has collected."""
    made = []
    for momentum in (0.0, 0.9):
        model = network("sim")
        optimizer = offloaded(model, "sgd", momentum=momentum, **LEAVE)
        backward(model)
        optimizer.param_groups[0]["momentum"] = 0.9
        optimizer.step()
        optimizer.zero_grad()
        train(model, optimizer, 2, first=1)
        made.append(model)
    assert_equal(*made)


@pytest.mark.parametrize("arrived_dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_sums_and_their_squares(dtype: torch.dtype | None, arrived_dtype: torch.dtype) -> None:
    """As torch adds; the squares are exact to float64, and the same with any number of threads."""
    count = (1 << 22) + 12_345
    torch.manual_seed(0)
    param = nn.Parameter(torch.zeros(count, dtype=arrived_dtype))
    grads = [torch.randn(count).to(arrived_dtype) for _ in range(2)]
    (bucket,) = buckets = divide([HostParam(param, "x", 0, {})], 1 << 25, True)
    found = []
    for threads in (1, 2, 3):
        sums = GradientSums(buckets, dtype, True, threads)
        for index, grad in enumerate(grads):
            sums.add(bucket, 0, grad, index == 0)
        expected = (grads[0].float() + grads[1].float()).to(dtype or arrived_dtype)
        assert torch.equal(sums.by_param[param], expected)
        found.append(sums.squares({param})[param])
    assert found[0] == pytest.approx(float(expected.double().square().sum()), rel=1e-14)
    assert found == found[:1] * 3


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_squares_of_what_is_not_finite(value: float) -> None:
    param = nn.Parameter(torch.zeros(100))
    (bucket,) = buckets = divide([HostParam(param, "x", 0, {})], 1 << 12, True)
    sums = GradientSums(buckets, None, True, 1)
    grad: Tensor = torch.full((100,), 2.0)
    grad[3] = value
    sums.add(bucket, 0, grad, True)
    assert str(sums.squares({param})[param]) == str(value)
