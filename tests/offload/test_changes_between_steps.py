"""Test what programs change between steps: states, options, the model. It is followed, or told."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from offload.scripts import network
from offload.test_faults import MODES, made
from offload.training import (
    OPTIONS,
    WIDTH,
    assert_equal,
    backward,
    master,
    offloaded,
    one_param,
    pair,
    train,
    weights,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import optgen
from optgen import compose, modifiers
from optgen.offloading import OffloadError, host_states

BACKWARD = MODES["backward"]


def replace(state: dict[str, Tensor]) -> None:
    """The new tensor may get the identity of the old one."""
    del state["exp_avg"]
    state["exp_avg"] = torch.zeros(4096)


def swap_memory(state: dict[str, Tensor]) -> None:
    for value in state.values():
        value.data = value.data.clone()


def set_step(state: dict[str, Tensor]) -> None:
    state["step"].zero_()


@pytest.mark.parametrize("bucket_bytes", [1 << 15, 128])
@pytest.mark.parametrize("change", [replace, swap_memory, set_step])
def test_states_that_a_program_changes(
    change: Callable[[Any], None], bucket_bytes: int, sim: Any
) -> None:
    ours, theirs = one_param(4096), nn.Parameter(torch.ones(4096))
    options = {**OPTIONS, "bucket_bytes": bucket_bytes}
    pairs = [
        (ours, optgen.offload("adamw", [ours], lr=1e-2, **options)),
        (theirs, master("adamw")([theirs], lr=1e-2)),
    ]
    for param, each in pairs:
        for index in range(4):
            param.grad = torch.full_like(param, 0.5 + index)
            each.step()
            change(each.state[param])
            others = [torch.full((4096,), 7.0) for _ in range(4)]  # in the memory that is free now

            assert all(bool((other == 7).all()) for other in others)
    pairs[0][1].close()

    assert torch.equal(ours.detach().cpu(), theirs.detach())


def test_an_option_that_asks_for_a_state_in_a_backward_pass_that_steps(sim: Any) -> None:
    ours, optimizer, theirs, reference = pair(**BACKWARD)
    for model, each in ((ours, optimizer), (theirs, reference)):
        train(model, each, 1)
        each.param_groups[0]["amsgrad"] = True
    with pytest.raises(RuntimeError, match="an option of a group asks for other states"):
        backward(ours, 1)
    ours.zero_grad()
    optimizer.synchronize()
    train(ours, optimizer, 2, first=1)
    train(theirs, reference, 2, first=1)

    assert_equal(ours, theirs)


def test_weights_that_change_after_a_backward_pass_that_steps(sim: Any) -> None:
    model, optimizer = made("backward")
    train(model, optimizer, 1)
    saved = copy.deepcopy(optimizer.state_dict())
    backward(model, 1)
    with torch.no_grad():
        model[0].weight.clamp_(-0.1, 0.1)
    with pytest.raises(OffloadError, match=r"0\.weight was changed between the backward pass"):
        optimizer.step()
    optimizer.load_state_dict(saved)
    optimizer.step()
    train(model, optimizer, 1)
    optimizer.close()


@pytest.mark.parametrize("call", ["refresh_masters", "state_dict", "eval", "train"])
def test_calls_between_a_backward_pass_that_steps_and_its_step(call: str, sim: Any) -> None:
    """Weights on the device are older than states then. The refused call changes nothing."""
    rule = compose("adamw", modifiers.ema)
    ours, optimizer, theirs, reference = pair(rule, **BACKWARD)
    for index in range(2):
        backward(ours, index)
        with pytest.raises(RuntimeError, match=rf"^{call}\(\) between a backward pass and step"):
            getattr(optimizer, call)()
        optimizer.step()
        getattr(optimizer, call)()
        optimizer.train()
    train(theirs, reference, 2)

    assert_equal(ours, theirs)


@pytest.mark.parametrize("rule", ["sgd", "ema"])
def test_states_that_the_worker_makes_before_the_step_begins(rule: str, sim: Any) -> None:
    """The load leaves no states, so the first step makes some, such as the momentum."""
    made = {"ema": compose("adamw", modifiers.ema), "sgd": "sgd"}[rule]
    ours, optimizer, theirs, reference = pair(made, **BACKWARD)
    for each in (optimizer, reference):
        each.load_state_dict(each.state_dict())
        each.param_groups[0].update({"momentum": 0.9} if rule == "sgd" else {})
    optimizer.synchronize()
    for index in range(3):
        for model, each in ((ours, optimizer), (theirs, reference)):
            backward(model, index)
            if each is optimizer:
                each.synchronize()  # the worker has stepped all buckets whose gradients are there
            each.step()
            each.zero_grad()

    assert_equal(ours, theirs)


@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_second_pass_over_other_parameters_is_refused(rebuilt: bool, sim: Any) -> None:
    """Its steps could not be told from those of the first if it fails."""
    first, second = one_param(), one_param()
    params = [first] if rebuilt else [first, second]
    optimizer = optgen.offload("adamw", params, lr=1e-2, **{**OPTIONS, **BACKWARD})
    first.sum().backward()
    if rebuilt:
        optimizer.add_param_group({"params": [second]})
    with pytest.raises(RuntimeError, match="a second backward pass since the last step"):
        second.sum().backward()
    for call in (optimizer.step, optimizer.state_dict):
        with pytest.raises(OffloadError, match="load a checkpoint"):
            call()
    optimizer.close()


def test_a_gradient_that_step_takes_after_the_optimizer_was_rebuilt(sim: Any) -> None:
    pairs = []
    for kind in ("sim", "cpu"):
        params = [nn.Parameter(torch.ones(64, device=kind)) for _ in range(2)]
        if kind == "sim":
            options = {**OPTIONS, **BACKWARD}
            optimizer = optgen.offload("adamw", params[:1], lr=1e-2, **options)
        else:
            optimizer = master("adamw")(params[:1], lr=1e-2)
        params[0].sum().backward()
        optimizer.add_param_group({"params": params[1:]})
        params[1].grad = torch.ones(64, device=kind)
        optimizer.step()
        pairs.append(([param.detach().cpu() for param in params], optimizer))
    pairs[0][1].close()

    for ours, theirs in zip(pairs[0][0], pairs[1][0], strict=True):
        assert torch.equal(ours, theirs)


def test_a_pass_inside_another_pass_is_refused(sim: Any) -> None:
    model = network("sim")
    optimizer = offloaded(model, **BACKWARD)
    hidden = model[0](torch.ones(2, WIDTH, dtype=torch.bfloat16, device="sim").requires_grad_())
    with pytest.raises(RuntimeError, match=r"give checkpoint\(\) use_reentrant=False"):
        checkpoint(model[2], hidden, use_reentrant=True).float().sum().backward()
    optimizer.close()


def test_a_load_that_fails_after_a_failed_pass(sim: Any) -> None:
    """The states are still of two steps, so they are not saved."""
    model, optimizer = made("backward")
    train(model, optimizer, 1)
    saved = optimizer.state_dict()
    bad = {**saved, "param_groups": []}
    optimizer._backward_steps.are_unfinished = True
    with pytest.raises(ValueError, match="group"):
        optimizer.load_state_dict(bad)
    with pytest.raises(OffloadError, match="load a checkpoint"):
        optimizer.state_dict()
    optimizer.close()


@pytest.mark.parametrize("dtype", ["8bit", "fp8", "4bit"])
@pytest.mark.parametrize("mode", MODES)
def test_states_of_8_bits_in_every_mode(mode: str, dtype: str, sim: Any) -> None:
    rule = compose("adamw", modifiers.quantized(dtype, min_elements=0))
    ours, theirs = network("sim"), network()
    module = {"module": ours} if mode == "forward" else {}
    optimizer = offloaded(ours, rule, **MODES[mode], **module)
    reference = optgen.compose(rule, modifiers.master)(theirs.parameters(), lr=1e-2)
    host = optimizer._stepper.host
    train(ours, optimizer, 3)
    train(theirs, reference, 3)

    assert optimizer._stepper.host is host  # it was not built anew
    assert_equal(ours, theirs)
    optimizer.close()


def test_two_backward_passes_that_step(sim: Any) -> None:
    ours, optimizer, theirs, reference = pair(**BACKWARD)
    backward(ours)
    with pytest.raises(RuntimeError, match="has gradient number 2 since the last step"):
        backward(ours, 1)
    ours.zero_grad()
    optimizer.step()
    train(theirs, reference, 1)

    assert_equal(ours, theirs)


def test_zero_grad_does_not_take_steps_back(sim: Any) -> None:
    """Else the weights of a pass that has stepped would not be sent."""
    ours, optimizer, theirs, reference = pair(**BACKWARD)
    backward(ours)
    optimizer.zero_grad()
    optimizer.step()
    train(theirs, reference, 1)

    assert_equal(ours, theirs)


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_is_converted_later_is_told(mode: str, sim: Any) -> None:
    model, optimizer = made(mode)
    train(model, optimizer, 1)
    before = weights(model)
    model.float()
    batch = torch.ones(2, 24, device="sim")

    def pass_and_step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()

    with pytest.raises(RuntimeError, match=r"torch\.float32, .* was \(torch\.bfloat16"):
        pass_and_step()
    optimizer.close()

    for now, then in zip(weights(model), before, strict=True):
        assert torch.equal(now, then.float())


@pytest.mark.parametrize("bucket_bytes", [128, 4096])
def test_another_memory_format(bucket_bytes: int, sim: Any) -> None:
    """A parameter in pieces has no gaps; another one may have any strides."""
    ours, theirs = one_param(576), nn.Parameter(torch.ones(576))
    options = {**OPTIONS, "bucket_bytes": bucket_bytes}
    for param in (ours, theirs):
        param.data = param.data.view(8, 8, 3, 3)
    pairs = [
        (ours, optgen.offload("adamw", [ours], lr=1e-2, **options)),
        (theirs, master("adamw")([theirs], lr=1e-2)),
    ]
    for param, each in pairs:
        param.data = param.data.to(memory_format=torch.channels_last)
        param.grad = torch.ones_like(param)
        if bucket_bytes == 128 and param is ours:
            with pytest.raises(RuntimeError, match=r"not contiguous\), and was"):
                each.step()
            return
        each.step()

    assert torch.equal(ours.detach().cpu(), theirs.detach())


@pytest.mark.parametrize("mode", MODES)
def test_a_group_whose_states_cannot_be_made(
    mode: str, sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimizer steps on without it."""

    def no_memory(*_: Any) -> None:
        raise MemoryError("planted")

    model, optimizer_ = made(mode)
    theirs = network()
    reference = master("adamw")(theirs.parameters(), lr=1e-2)
    train(model, optimizer_, 1)
    with monkeypatch.context() as patch:
        patch.setattr(host_states, "create_states", no_memory)
        with pytest.raises(MemoryError, match="planted"):
            optimizer_.add_param_group({"params": [("another", one_param())]})
    train(model, optimizer_, 2, first=1)
    train(theirs, reference, 3)
    optimizer_.close()

    assert_equal(model, theirs)


def test_a_model_that_moves_waits(sim: Any) -> None:
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24)).bfloat16()
    ours = copy.deepcopy(theirs).to("sim")
    first, second = (offloaded(ours[index], module=ours) for index in (0, 2))
    reference = master("adamw")(theirs.parameters(), lr=1e-2)
    sim.configure(latency=0.01)
    for model, optimizers in ((ours, [first, second]), (theirs, [reference])):
        backward(model)
        for each in optimizers:
            each.step()
    ours.cpu()
    assert_equal(ours, theirs)

    ours.to("sim")
    first.close()
    with pytest.raises(RuntimeError, match="were replaced after offload was called"):
        backward(ours)
    ours[2].cpu()
    second.close()
    assert not any("_apply" in vars(module) for module in ours.modules())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", ["schedule_free_adamw", "sgd"])
def test_weights_that_are_loaded_after_the_optimizer_was_made(
    rule: str, mode: str, sim: Any
) -> None:
    """States that begin as the weights begin as those of the first step."""
    ours, theirs, other = network("sim"), network(), network(seed=1)
    module = {"module": ours} if mode == "forward" else {}
    optimizer_ = offloaded(ours, rule, **MODES[mode], **module)
    reference = master(rule)(theirs.parameters(), lr=1e-2)
    for model, each in ((ours, optimizer_), (theirs, reference)):
        model.load_state_dict(other.state_dict())
        train(model, each)
    optimizer_.close()

    assert_equal(ours, theirs)


@pytest.mark.parametrize("rule", ["adamw", "sgd", "schedule_free_sgd", "adagrad"])
@pytest.mark.parametrize("what", ["one", "all", "replaced"])
def test_states_that_someone_removes_begin_anew(what: str, rule: str, sim: Any) -> None:
    ours, theirs = network("sim"), network()
    pairs = [
        (ours, offloaded(ours, rule, lr=0.01)),
        (theirs, master(rule)(theirs.parameters(), lr=0.01)),
    ]
    for model, each in pairs:
        train(model, each, 2)
        if what == "one":
            del each.state[next(model.parameters())]
        elif what == "all":
            each.state.clear()
        else:
            each.state = defaultdict(dict)
        train(model, each, 2, first=2)

    assert_equal(ours, theirs)
    states = [each.state_dict()["state"] for _, each in pairs]
    assert [*map(len, states)] == [7, 7]


@pytest.mark.parametrize("keep_on_device", [0, 1 << 20])
def test_states_begin_as_the_weights_of_the_first_step(keep_on_device: int, sim: Any) -> None:
    """Also those of a later group, and those that a checkpoint lacks; as in the plain class."""
    rule = compose("sgd", modifiers.ema(ema_decay=0.5))
    plain = compose("sgd", modifiers.state_dtype("float32"), modifiers.master)
    source = network()
    saving = plain(source.parameters(), lr=0.01)
    train(source, saving, 1)
    left = []
    for device in ("sim", "cpu"):
        model = network(device)
        optimizer: Any = (
            optgen.offload(rule, model.parameters(), lr=0.01, keep_on_device=keep_on_device)
            if device == "sim"
            else compose(rule, modifiers.state_dtype("float32"), modifiers.master)(
                model.parameters(), lr=0.01
            )
        )
        assert not optimizer.state_dict()["state"]
        optimizer.load_state_dict(copy.deepcopy(saving.state_dict()))
        model.load_state_dict(source.state_dict())
        train(model, optimizer, 2)
        optimizer.eval()
        left.append(model)

    for own, other in zip(*(each.parameters() for each in left), strict=True):
        assert torch.equal(own.detach().cpu(), other.detach())


@pytest.mark.parametrize("mode", MODES)
def test_memory_that_is_swapped_counts(mode: str, sim: Any) -> None:
    """An assignment to `.data` leaves torch's version counter as it is."""
    ours, made_by_us = made(mode)
    theirs = network()
    reference = master("adamw")(theirs.parameters(), lr=1e-2)
    for model, each in ((ours, made_by_us), (theirs, reference)):
        train(model, each, 2)
        first = next(model.parameters())
        first.data = first.data.clone().mul_(0.5)
        train(model, each, 2, first=2)

    assert_equal(ours, theirs)


@pytest.mark.parametrize("mode", MODES)
def test_two_optimizers_of_the_same_parameters(mode: str, sim: Any) -> None:
    """Each waits for the other's steps. Gradients can leave for one of them only."""
    ours, theirs = network("sim"), network()
    module = {"module": ours} if mode == "forward" else {}
    own = [offloaded(ours, rule, **MODES[mode], **module) for rule in ("adamw", "sgd")]
    others = [master(rule)(theirs.parameters(), lr=1e-2) for rule in ("adamw", "sgd")]
    if "gradients" in MODES[mode]:
        with pytest.raises(RuntimeError, match="was taken by another hook"):
            backward(ours)
        return
    sim.configure(latency=0.003)
    for index in range(3):
        for model, optimizers in ((ours, own), (theirs, others)):
            backward(model, index)
            for each in optimizers:
                each.step()
            optimizers[0].zero_grad()
    for each in own:
        each.synchronize()

    assert_equal(ours, theirs)


def test_a_model_whose_parameters_were_moved_is_told(sim: Any) -> None:
    """This device's parameters are other objects after a move."""
    ours, optimizer_ = made("forward")
    train(ours, optimizer_, 1)
    ours.cpu()
    with pytest.raises(RuntimeError, match="were replaced after offload was called"):
        backward(ours, 1)
