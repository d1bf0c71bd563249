"""Test SAM against the authors' steps, written plainly, and what a step promises."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import optgen
from optgen.keyed import UpdateInBackward
from optgen.offloading import OffloadedOptimizer
from optgen.optim import (
    LBFGS,
    SAM,
    SGD,
    Adadelta,
    AdamW,
    ScheduleFreeSGD,
    create_optimizer,
    list_optimizers,
)

INPUTS = torch.linspace(-1, 1, 64, dtype=torch.float64).reshape(16, 4)


def network() -> nn.Sequential:
    """Return a network whose last parameter never gets a gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    model.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
    return model


def loss_of(model: nn.Module) -> Tensor:
    return (model(INPUTS) - INPUTS[:, :2].sin()).square().mean()


def closure_of(model: nn.Module) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        loss = loss_of(model)
        loss.backward()
        return loss

    return closure


@torch.no_grad()
def climb(groups: list[dict[str, Any]]) -> None:
    """Take the authors' first step: https://github.com/davda54/sam."""
    sizes = []
    for group in groups:
        for param in group["params"]:
            if param.grad is not None:
                weight = param.abs() if group["adaptive"] else 1.0
                sizes.append((weight * param.grad).norm())
    norm = torch.stack(sizes).norm()
    for group in groups:
        for param in group["params"]:
            if param.grad is not None:
                weight = param**2 if group["adaptive"] else 1.0
                param += weight * param.grad * group["rho"] / (norm + 1e-12)


def reference_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]
) -> Tensor:
    """Take a step of the authors' class; `groups` have parameters, `rho` and `adaptive`."""
    optimizer.zero_grad()
    loss = loss_of(model)
    loss.backward()
    before = copy.deepcopy(model.state_dict())
    climb(groups)
    optimizer.zero_grad()
    loss_of(model).backward()
    model.load_state_dict(before)
    optimizer.step()
    return loss


def weights(model: nn.Module) -> list[Tensor]:
    return [param.detach().clone() for param in model.parameters()]


def assert_close(model: nn.Module, expected: nn.Module) -> None:
    torch.testing.assert_close(weights(model), weights(expected), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_steps_are_the_authors(adaptive: bool, lowering: str) -> None:
    ours, theirs = network(), network()
    optimizer = SAM(AdamW(ours.parameters(), lr=1e-2), rho=0.2, adaptive=adaptive)
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    groups = [{"params": list(theirs.parameters()), "rho": 0.2, "adaptive": adaptive}]
    for _ in range(6):
        with optgen.use_lowering(lowering):
            loss = optimizer.step(closure_of(ours))
        torch.testing.assert_close(loss, reference_step(theirs, reference, groups))

    assert_close(ours, theirs)


@pytest.mark.parametrize("base", [SGD, Adadelta, torch.optim.SGD])
def test_groups_have_their_own_rho_and_one_norm(base: Any) -> None:
    """Adadelta has a hyperparameter `rho` of its own."""
    ours, theirs = network(), network()
    options = ({"rho": 0.3, "adaptive": True}, {"rho": 0.1, "adaptive": False})
    own = [{f"sam_{key}": value for key, value in each.items()} for each in options]
    optimizer = SAM(
        base([{"params": ours[i].parameters(), **own[n]} for n, i in enumerate((0, 2))], lr=0.1)
    )
    layers = [list(theirs[i].parameters()) for i in (0, 2)]
    name = base.__name__
    reference = getattr(torch.optim, name)([p for layer in layers for p in layer], lr=0.1)
    groups = [{"params": p, **o} for p, o in zip(layers, options, strict=True)]
    for _ in range(4):
        optimizer.step(closure_of(ours))
        reference_step(theirs, reference, groups)

    assert_close(ours, theirs)


def test_the_halves_are_a_step() -> None:
    whole, halves = network(), network()
    one, two = (SAM(SGD(each.parameters(), lr=0.1, momentum=0.9)) for each in (whole, halves))
    for _ in range(3):
        one.step(closure_of(whole))
        loss_of(halves).backward()
        two.first_step()
        loss_of(halves).backward()
        two.second_step(zero_grad=True)

    assert_close(halves, whole)
    assert all(param.grad is None for param in halves.parameters())


def test_the_length_of_the_climb_is_rho() -> None:
    model = network()
    optimizer = SAM(SGD(model.parameters(), lr=0.1), rho=0.25)
    before = weights(model)
    loss_of(model).backward()
    optimizer.first_step()
    ways = [now - old for now, old in zip(weights(model), before, strict=True)]

    assert torch.stack([way.norm() for way in ways]).norm().item() == pytest.approx(0.25)
    optimizer.restore()
    assert all(map(torch.equal, weights(model), before))


@pytest.mark.parametrize("failing_call", [1, 2])
def test_a_failed_closure_changes_no_weight_and_no_state(failing_call: int) -> None:
    model = network()
    optimizer = SAM(AdamW(model.parameters(), lr=1e-2))
    optimizer.step(closure_of(model))
    before, state = weights(model), copy.deepcopy(optimizer.state_dict())
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        if calls == failing_call:
            raise KeyboardInterrupt
        return closure_of(model)()

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(closure)
    assert all(map(torch.equal, weights(model), before))
    torch.testing.assert_close(optimizer.state_dict(), state, rtol=0, atol=0)
    optimizer.step(closure_of(model))


def test_a_step_that_the_base_refuses_restores_the_weights() -> None:
    model = network()
    optimizer = SAM(SGD(model.parameters(), lr=0.1))
    before = weights(model)
    loss_of(model).backward()
    optimizer.first_step()
    loss_of(model).backward()
    optimizer.param_groups[0]["lr"] = "fast"

    with pytest.raises((TypeError, ValueError)):
        optimizer.second_step()
    assert all(map(torch.equal, weights(model), before))


@pytest.mark.parametrize("base", [AdamW, torch.optim.AdamW])
def test_a_scaler_unscales_and_puts_weights_back_after_an_overflow(base: Any) -> None:
    ours, theirs = network(), network()
    optimizer = SAM(base(ours.parameters(), lr=1e-2), rho=0.2)
    reference = SAM(base(theirs.parameters(), lr=1e-2), rho=0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    for step, factors in enumerate([(1, 1), (torch.inf, 1), (1, torch.inf), (1, 1)]):
        before, scale = weights(ours), scaler.get_scale()
        scaler.scale(factors[0] * loss_of(ours)).backward()
        optimizer.first_step()
        scaler.scale(factors[1] * loss_of(ours)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if step == 2:
            assert all(map(torch.equal, weights(ours), before))
            assert scaler.get_scale() == scale / 2
            continue
        for group in reference.param_groups:
            group["sam_rho"] = 0.0 if step == 1 else 0.2  # no climb after an overflow
        reference.step(closure_of(theirs))

    assert_close(ours, theirs)


def test_gradients_that_the_caller_unscaled_are_not_unscaled_again() -> None:
    ours, theirs = network(), network()
    optimizer, reference = (SAM(SGD(each.parameters(), lr=0.1)) for each in (ours, theirs))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(loss_of(ours)).backward()
    optimizer.first_step()
    scaler.scale(loss_of(ours)).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    reference.step(closure_of(theirs))

    assert_close(ours, theirs)


def test_checkpoints_are_those_of_the_base_in_both_directions() -> None:
    model, other = network(), network()
    optimizer = SAM(AdamW(model.parameters(), lr=1e-2), rho=0.3)
    for _ in range(2):
        optimizer.step(closure_of(model))
    resumed = SAM(AdamW(other.parameters()))
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert resumed.param_groups[0]["sam_rho"] == 0.3
    for each, trained in ((optimizer, model), (resumed, other)):
        each.step(closure_of(trained))
    assert_close(other, model)

    plain = torch.optim.AdamW(other.parameters())
    plain.load_state_dict(optimizer.state_dict())
    plain.param_groups[0].pop("sam_rho")
    resumed.load_state_dict(plain.state_dict())
    assert resumed.param_groups[0]["sam_rho"] == 0.3


def test_torchs_checkpoint_functions_create_the_state_without_a_step() -> None:
    model, other = network(), network()
    for each in (model, other):
        del each.unused  # torch's functions refuse a parameter without a state
    optimizer, resumed = (SAM(AdamW(each.parameters())) for each in (model, other))
    optimizer.step(closure_of(model))
    saved = get_optimizer_state_dict(model, optimizer)
    before = weights(other)
    set_optimizer_state_dict(other, resumed, saved)

    assert all(map(torch.equal, weights(other), before))
    torch.testing.assert_close(resumed.state_dict()["state"], optimizer.state_dict()["state"])


def test_a_copy_continues_the_training() -> None:
    model = network()
    optimizer = SAM(AdamW(model.parameters()))
    optimizer.step(closure_of(model))
    other, resumed = pickle.loads(pickle.dumps((model, optimizer)))
    optimizer.step(closure_of(model))
    resumed.step(closure_of(other))

    assert_close(other, model)


def test_schedulers_hooks_and_explain_see_one_optimizer() -> None:
    model, calls = network(), []
    optimizer = SAM(AdamW(model.parameters(), lr=1.0))
    optimizer.register_step_post_hook(lambda *_: calls.append("step"))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step(closure_of(model))
    scheduler.step()

    assert isinstance(optimizer, torch.optim.Optimizer)
    assert calls == ["step"]
    assert optimizer.base.param_groups[0]["lr"] == 0.5
    assert optgen.explain(optimizer).startswith("SAM: two gradients for each step")
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    assert optimizer.param_groups[1]["sam_rho"] == 0.05


def test_two_optimizers_as_one_are_a_base() -> None:
    """The norm is that of the gradients of both."""
    ours, theirs = network(), network()
    names = {"others_names": ["2.*", "unused"], "others": ("sgd", {"lr": 0.1})}
    optimizer = SAM(create_optimizer(ours, "sgd", lr=0.1, **names), rho=0.2)
    reference = SAM(SGD(theirs.parameters(), lr=0.1), rho=0.2)
    for _ in range(3):
        optimizer.step(closure_of(ours))
        reference.step(closure_of(theirs))

    assert_close(ours, theirs)


def test_weights_of_16_bits_come_back_bit_for_bit() -> None:
    model = network().bfloat16()
    before = weights(model)
    optimizer = SAM(SGD(model.parameters(), lr=0.0), rho=0.5)

    def closure() -> Tensor:
        loss = model(INPUTS.bfloat16()).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert all(map(torch.equal, weights(model), before))


def test_errors_say_what_to_do() -> None:
    model = network()
    with pytest.raises(TypeError, match="make the base first"):
        SAM(model.parameters())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="LBFGS calls the closure itself"):
        SAM(LBFGS(model.parameters()))
    with pytest.raises(TypeError, match="SAM calls the closure itself"):
        SAM(SAM(SGD(model.parameters(), lr=0.1)))
    with pytest.raises(ValueError, match="Invalid rho, should be non-negative: -1"):
        SAM(SGD(model.parameters(), lr=0.1), rho=-1)
    optimizer = SAM(SGD(model.parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match="needs a closure, or first_step"):
        optimizer.step()
    loss_of(model).backward()
    optimizer.first_step()
    with pytest.raises(RuntimeError, match=r"first_step\(\) was called twice"):
        optimizer.first_step()


def test_sparse_gradients_are_refused_before_anything_changes() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    before = weights(table)
    optimizer = SAM(SGD(table.parameters(), lr=0.1))
    table(torch.tensor([1])).sum().backward()

    with pytest.raises(RuntimeError, match="dense gradients"):
        optimizer.first_step()
    assert all(map(torch.equal, weights(table), before))
    optimizer.restore()


def climbed(weight: Tensor, grad: Tensor, **options: Any) -> Tensor:
    """Return where a weight is between the halves; afterwards it is back."""
    param = nn.Parameter(weight.clone())
    optimizer = SAM(SGD([param], lr=0.1, maximize=options.pop("maximize", False)), **options)
    param.grad = grad.clone()
    optimizer.first_step()
    there = param.detach().clone()
    optimizer.restore()
    assert torch.equal(param.detach(), weight)
    return there


@pytest.mark.parametrize("adaptive", [False, True])
def test_maximizing_groups_climb_against_the_gradient(adaptive: bool) -> None:
    weight, grad = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -4.0])
    options: dict[str, Any] = {"rho": 0.5, "adaptive": adaptive}
    way = climbed(weight, grad, **options) - weight

    torch.testing.assert_close(climbed(weight, grad, maximize=True, **options), weight - way)
    assert way[0] > 0 > way[1]


def test_adaptive_ways_of_complex_weights_have_the_direction_of_the_gradient() -> None:
    weight = torch.tensor([1 + 2j, -3j], dtype=torch.complex128)
    grad = torch.tensor([2 - 1j, 1 + 1j], dtype=torch.complex128)
    norm = (weight.abs() * grad).abs().square().sum().sqrt()
    expected = weight + 0.5 * weight.abs().square() * grad / norm

    torch.testing.assert_close(climbed(weight, grad, rho=0.5, adaptive=True), expected)


@pytest.mark.parametrize("size", [0.0, 6e-8, 1e-3, 6e4])
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_ways_of_16_bits_are_rounded_once(dtype: torch.dtype, adaptive: bool, size: float) -> None:
    weight = torch.tensor([300.0, -1.5, 0.01], dtype=dtype)
    grad = torch.tensor([size, -size / 2, size / 3], dtype=dtype)
    there = climbed(weight, grad, rho=0.5, adaptive=adaptive)
    exact = climbed(weight.double(), grad.double(), rho=0.5, adaptive=adaptive)

    torch.testing.assert_close(there, exact.to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("size", [1e20, 1e38])
@pytest.mark.parametrize("adaptive", [False, True])
def test_large_finite_gradients_are_no_overflow(adaptive: bool, size: float) -> None:
    weight, grad = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([1.0, 1.0, -2.0])
    options: dict[str, Any] = {"rho": 0.5, "adaptive": adaptive}

    there = climbed(weight, size * grad, **options)
    torch.testing.assert_close(there, climbed(weight, grad, **options))
    many = climbed(torch.ones(1000), torch.full((1000,), 3e38), **options)
    torch.testing.assert_close(many, torch.full((1000,), 1 + 0.5 / 1000**0.5))
    assert torch.equal(climbed(weight, torch.inf * grad, **options), weight)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_modes_do_not_change_between_the_halves(mode: str) -> None:
    model = network()
    optimizer = SAM(ScheduleFreeSGD(model.parameters(), lr=0.1))
    optimizer.step(closure_of(model))
    loss_of(model).backward()
    optimizer.first_step()
    before = weights(model)

    with pytest.raises(RuntimeError, match=r"second_step\(\) or restore\(\) first"):
        getattr(optimizer, mode)()
    assert all(map(torch.equal, weights(model), before))
    optimizer.restore()
    getattr(optimizer, mode)()


def test_halves_without_gradients_are_a_step() -> None:
    param = nn.Parameter(torch.ones(2))
    optimizer = SAM(SGD([param], lr=0.5))
    optimizer.first_step()
    with pytest.raises(RuntimeError, match="called twice"):
        optimizer.first_step()
    param.grad = torch.ones(2)
    optimizer.second_step()

    assert torch.equal(param.detach(), torch.full((2,), 0.5))
    with pytest.raises(RuntimeError, match="needs a closure, or first_step"):
        optimizer.second_step()


def test_a_scaler_gives_no_closure() -> None:
    model = network()
    optimizer, scaler = SAM(SGD(model.parameters(), lr=0.1)), torch.amp.GradScaler("cpu")
    before = weights(model)
    scaler.scale(loss_of(model)).backward()

    with pytest.raises(RuntimeError, match=r"call first_step\(\)"):
        scaler.step(optimizer, closure_of(model))
    assert all(map(torch.equal, weights(model), before))
    optimizer.step(closure_of(model))  # without the scaler


@pytest.mark.parametrize("rho", ["0.1", None, True, 1j, torch.ones(2)])
def test_a_rho_that_is_no_number_is_refused(rho: Any) -> None:
    base = SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(TypeError, match="rho of SAM should be a number"):
        SAM(base, rho=rho)
    optimizer = SAM(base)
    with pytest.raises(TypeError, match="rho of SAM should be a number"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "sam_rho": rho})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("rho", [10**400, float("nan"), float("inf"), torch.tensor(-1.0)])
def test_a_rho_out_of_range_is_refused(rho: Any) -> None:
    with pytest.raises(ValueError, match="Invalid rho, should be non-negative"):
        SAM(SGD([nn.Parameter(torch.ones(2))], lr=0.1), rho=rho)


def test_a_tensor_of_one_element_is_a_rho() -> None:
    weight, grad = torch.ones(2), torch.tensor([3.0, 4.0])
    there = climbed(weight, grad, rho=torch.tensor(0.5))

    torch.testing.assert_close(there, torch.tensor([1.3, 1.4]))


def test_adaptive_is_a_bool() -> None:
    base = SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(TypeError, match="adaptive of SAM should be True or False, not 'no'"):
        SAM(base, adaptive="no")  # type: ignore[arg-type]
    optimizer = SAM(base)
    with pytest.raises(TypeError, match="adaptive of SAM should be True or False, not 1"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "sam_adaptive": 1})
    assert len(optimizer.param_groups) == 1


def test_gradients_that_are_used_in_the_backward_pass_are_refused() -> None:
    offloaded = OffloadedOptimizer.__new__(OffloadedOptimizer)  # its constructor needs a device
    with pytest.raises(TypeError, match="SAM takes no offloaded optimizer"):
        SAM(offloaded)
    model = UpdateInBackward(network(), SGD, lr=0.1)
    for base in (model.fused_optimizer, SGD(model.parameters(), lr=0.1)):
        with pytest.raises(TypeError, match="updated in the backward pass"):
            SAM(base)


def test_a_wrapper_has_no_name_among_optimizers() -> None:
    assert "sam" not in list_optimizers()
    with pytest.raises(ValueError, match="no optimizer is called 'sam'"):
        create_optimizer(network(), "sam")
