"""Test what torch expects of an optimizer: groups, hooks, schedulers, scalers, copies."""

from __future__ import annotations

import copy
import os
import pickle
from typing import Any

import pytest
import torch
from offload.scripts import inputs, loss, network
from offload.training import (
    OPTIONS,
    assert_equal,
    backward,
    master,
    offloaded,
    one_param,
    pair,
    train,
    weights,
)
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel

import optgen
from optgen.offloading.options import thread_count


def test_it_is_an_optimizer(sim: Any) -> None:
    with offloaded(network("sim")) as optimizer:
        reference = master("adamw")(network().parameters(), lr=1e-2)

        assert isinstance(optimizer, torch.optim.Optimizer)
        assert optimizer.defaults == reference.defaults
        assert repr(optimizer).startswith("OffloadedOptimizer")
        keys = set(optimizer.param_groups[0]) - {"param_names"}
        assert keys == set(reference.param_groups[0])


def test_groups_and_a_scheduler(sim: Any) -> None:
    ours, theirs = network("sim"), network()
    for model, make in ((ours, offloaded_groups), (theirs, master("adamw"))):
        optimizer = make(
            [{"params": [p], "weight_decay": 0.1 * p.dim()} for p in model.parameters()], lr=1e-2
        )
        scheduler = OneCycleLR(optimizer, max_lr=2e-2, total_steps=10)
        for index in range(5):
            backward(model, index)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    assert_equal(ours, theirs)


def offloaded_groups(groups: Any, **hyper: Any) -> Any:
    return optgen.offload("adamw", groups, **OPTIONS, **hyper)


@pytest.mark.parametrize("scheduler", [ReduceLROnPlateau, lambda o: LambdaLR(o, lambda e: 0.5**e)])
def test_schedulers(scheduler: Any, sim: Any) -> None:
    with offloaded(network("sim")) as optimizer:
        made = scheduler(optimizer)
        optimizer.step()
        made.step(1.0) if scheduler is ReduceLROnPlateau else made.step()


def test_step_hooks_run(sim: Any) -> None:
    model, calls = network("sim"), list[str]()
    with offloaded(model) as optimizer:
        optimizer.register_step_pre_hook(lambda *args: calls.append("before"))
        optimizer.register_step_post_hook(lambda *args: calls.append("after"))
        train(model, optimizer, 1)

    assert calls == ["before", "after"]


def test_a_closure_runs_once(sim: Any) -> None:
    ours, optimizer, theirs, reference = pair()

    def closure() -> Any:
        backward(ours)
        return 3.0

    assert optimizer.step(closure) == 3.0
    backward(theirs)
    reference.step()
    assert_equal(ours, theirs)


def test_a_group_is_added_later(sim: Any) -> None:
    ours, theirs = network("sim"), network()
    for model, make in ((ours, offloaded_groups), (theirs, master("adamw"))):
        first, *others = model.parameters()
        optimizer = make([first], lr=1e-2)
        train(model, optimizer, 2)
        optimizer.add_param_group({"params": others, "lr": 5e-3})
        for param in others:
            param.grad = None
        train(model, optimizer, 2, first=2)

    assert_equal(ours, theirs)


def test_a_refused_group_changes_nothing(sim: Any) -> None:
    model = network("sim")
    with offloaded(model) as optimizer:
        with pytest.raises(ValueError, match=r"it is of torch\.float64"):
            optimizer.add_param_group(
                {"params": [("x", nn.Parameter(torch.ones(8, device="sim").double()))]}
            )
        train(model, optimizer, 1)

        assert len(optimizer.param_groups) == 1


def test_a_state_that_an_option_asks_for_is_made(sim: Any) -> None:
    ours, optimizer, theirs, reference = pair("sgd")
    for model, each in ((ours, optimizer), (theirs, reference)):
        train(model, each, 2)
        each.param_groups[0]["momentum"] = 0.9
        train(model, each, 2, first=2)

    assert_equal(ours, theirs)
    assert [*optimizer.state[next(ours.parameters())]] == ["momentum_buffer", "master"]


def test_a_state_that_is_replaced_counts(sim: Any) -> None:
    ours, optimizer, theirs, reference = pair()
    for model, each in ((ours, optimizer), (theirs, reference)):
        train(model, each, 2)
        states, device = each.state[next(model.parameters())], next(model.parameters()).device
        states["exp_avg"] = torch.full_like(states["exp_avg"], 0.25, device=device)
        del states["exp_avg_sq"]
        train(model, each, 2, first=2)

    assert_equal(ours, theirs)
    states = optimizer.state[next(ours.parameters())]
    assert {each.device.type for each in states.values()} == {"cpu"}
    states["exp_avg"] = states["exp_avg"][:1]
    backward(ours)
    with pytest.raises(ValueError, match=r"'exp_avg' of 0\.weight was replaced by a tensor"):
        optimizer.step()


def test_the_count_of_threads_changes_no_bit(sim: Any) -> None:
    params = [nn.Parameter(torch.ones(3_000_000, device="sim")) for _ in range(2)]
    for threads, param in enumerate(params, 1):
        with optgen.offload("adamw", [param], threads=threads, lr=0.1) as optimizer:
            for index in range(2):
                param.grad = torch.linspace(-1, index, param.numel()).to("sim")
                optimizer.step()

    assert torch.equal(params[0].cpu(), params[1].cpu())


def test_threads_are_apart_from_torchs(sim: Any) -> None:
    """Launchers give torch one thread: the kernel still has those that it was promised."""
    grown, torchs = [], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for threads in (1, 3):
            param = one_param(3_000_000)
            with optgen.offload("adamw", [param], threads=threads, bucket_bytes=1 << 24) as each:
                param.grad = torch.ones_like(param)
                before = len(os.listdir("/proc/self/task"))
                each.step()
                grown.append(len(os.listdir("/proc/self/task")) - before)
    finally:
        torch.set_num_threads(torchs)

    assert grown[1] - grown[0] == 2


@pytest.mark.parametrize("ranks", [1, 2, 64])
def test_ranks_share_the_cores(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    each, cores = thread_count(None), len(os.sched_getaffinity(0))

    assert each == 1 or ranks * (each + 1) <= cores


def test_gradients_that_stay_can_be_clipped_and_accumulated(sim: Any) -> None:
    ours, optimizer, theirs, reference = pair()
    for model, each in ((ours, optimizer), (theirs, reference)):
        backward(model, 0)
        backward(model, 1)
        clip_grad_norm_(model.parameters(), 0.01, foreach=False)
        each.step()

    assert_equal(ours, theirs)


def test_a_step_without_gradients_changes_nothing(sim: Any) -> None:
    model = network("sim")
    before = weights(model)
    with offloaded(model) as optimizer:
        optimizer.step()

        assert all(map(torch.equal, before, weights(model)))
        assert optimizer.report().steps == 0


def test_a_frozen_parameter_is_not_stepped(sim: Any) -> None:
    ours, optimizer, theirs, reference = pair()
    for model, each in ((ours, optimizer), (theirs, reference)):
        train(model, each, 1)
        next(model.parameters()).requires_grad_(False)
        train(model, each, 2, first=1)

    assert_equal(ours, theirs)
    assert float(optimizer.state[next(ours.parameters())]["step"]) == 1


def test_small_parameters_are_stepped_on_the_device(sim: Any) -> None:
    ours, optimizer, theirs, reference = pair(keep_on_device=100)
    train(ours, optimizer)
    train(theirs, reference)
    states = {p.dim(): optimizer.state[p]["exp_avg"] for p in ours.parameters()}

    assert (states[1].device.type, states[2].device.type) == ("sim", "cpu")
    for x, y in zip(weights(ours), weights(theirs), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-2, atol=1e-3)
    assert (
        optgen.explain(optimizer)
        == (
            "group 0: offloaded: 3 parameters by a fused C++ kernel on the host, in "
            f"{optimizer._options.threads} thread; 4 small ones on the device"
        )
        or optimizer._options.threads > 1
    )


def test_a_gradient_scaler_skips_a_step(sim: Any) -> None:
    model = network("sim")
    before = weights(model)
    with offloaded(model) as optimizer:
        scaler = torch.amp.GradScaler("sim", init_scale=2.0)
        scaler.scale(loss(model, inputs(1)[0].to("sim"))).backward()
        next(model.parameters()).grad.fill_(float("inf"))  # type: ignore[union-attr]
        scaler.step(optimizer)
        scaler.update()

        assert all(map(torch.equal, before, weights(model)))
        assert scaler.get_scale() == 1.0


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused(copied: Any, sim: Any) -> None:
    with (
        offloaded(network("sim")) as optimizer,
        pytest.raises(TypeError, match="save its state_dict"),
    ):
        copied(optimizer)


def test_a_model_with_hooks_can_be_copied(sim: Any) -> None:
    model = network("sim")
    with offloaded(model, module=model) as optimizer:
        train(model, optimizer, 1)
        average = AveragedModel(model)
        average.update_parameters(model)

        backward(average.module)
        pickle.loads(pickle.dumps(nn.Module()))


def test_zero_grad_leaves_zeros_or_nothing(sim: Any) -> None:
    model = network("sim")
    with offloaded(model) as optimizer:
        backward(model)
        optimizer.zero_grad(set_to_none=False)
        assert not any(p.grad.cpu().any() for p in model.parameters())  # type: ignore[union-attr]
        optimizer.zero_grad()
        assert all(p.grad is None for p in model.parameters())


def test_the_report_counts_bytes(sim: Any) -> None:
    model = network("sim")
    elements = sum(param.numel() for param in model.parameters())
    with offloaded(model, bucket_bytes=4096, slots=3) as optimizer:
        train(model, optimizer, 2)
        report = optimizer.report()

    assert report.pinned_bytes == 2 * 3 * 4096
    assert report.steps == 2
    assert report.to_host_bytes == report.to_device_bytes == 2 * elements
    assert 12 * elements <= report.host_bytes <= 12.1 * elements
    assert report.device_bytes == 0
    assert "hidden" in str(report)
