"""Test autograd through a step, against finite differences and torch's own classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from parity.cases import CASE_OF_DENSE_CLASS, CASES, Case
from parity.classes import torch_has_flag
from parity.trajectories import random_values, relative_error
from torch import Tensor

import optgen
from optgen.spec import hyper, optimizer, state

DIFFERENTIABLE = [
    case
    for case in CASES
    if torch_has_flag(case.name, "differentiable") and case.options.get("lr", 1) != 0
]
CASES_OF_LEARNT_LR = [
    case for case in CASE_OF_DENSE_CLASS.values() if torch_has_flag(case.name, "differentiable")
]
CASES_WITH_TORCHS_GRADIENTS = [
    c for c in DIFFERENTIABLE if c.name != "ASGD" or c.options.get("t0", 1e6) > 10
]
"""Cases without ASGD's averaging, where torch changes mu before autograd has read it."""


def states_in_training(case: Case) -> dict[str, Tensor]:
    """Return the states of a parameter after some steps. They require grad, except 0-dim ones."""
    param = torch.nn.Parameter(torch.ones(6, dtype=torch.float64))
    optimizer = case.theirs([param])
    for grad in random_values([(6,)] * 7, torch.float64, 3):
        param.grad = grad
        optimizer.step()
    state = dict(optimizer.state[param])
    for value in state.values():
        value[value == 0] = 0.5  # Rprop's sign jumps at 0
    return {
        # 0-dim tensors are step counts and schedules.
        key: value.detach().clone().requires_grad_(value.dim() > 0)
        for key, value in state.items()
    }


def functional_step(
    make: Any, state: dict[str, Tensor], param: Tensor, grad: Tensor
) -> tuple[Tensor, ...]:
    """Take a step as a function: return the new parameter, and the differentiable new states."""
    param = param.clone()
    param.grad = grad
    optimizer = make([param], differentiable=True)
    optimizer.state[param].update({key: value.clone() for key, value in state.items()})
    optimizer.step()
    return (param, *(v for v in optimizer.state[param].values() if v.requires_grad))


def param_and_grad() -> tuple[Tensor, Tensor]:
    param, grad = (v.requires_grad_() for v in random_values([(6,)] * 2, torch.float64, 5))
    return param, grad


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=str)
def test_gradients_agree_with_finite_differences(case: Case) -> None:
    state = states_in_training(case)
    keys = list(state)

    def function(param: Tensor, grad: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        return functional_step(case.ours, dict(zip(keys, tensors, strict=True)), param, grad)

    # eps is smaller than the smallest state, which is Adadelta's: about 1e-6.
    assert torch.autograd.gradcheck(function, (*param_and_grad(), *state.values()), eps=1e-9)


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    """Make float64 the default dtype, so that torch's step count is a float64 tensor."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize("case", CASES_WITH_TORCHS_GRADIENTS, ids=str)
def test_gradients_equal_torchs(case: Case) -> None:
    state = states_in_training(case)
    found = []
    for make in (case.ours, case.theirs):
        param, grad = param_and_grad()
        sources = [param, grad, *(v for v in state.values() if v.requires_grad)]
        results = functional_step(make, state, param, grad)
        weighted = sum((r * torch.arange(6)).sum() for r in results)
        found.append(torch.autograd.grad(weighted, sources))

    for ours, theirs in zip(*found, strict=True):
        assert relative_error(ours, theirs) < 1e-12
    assert all(gradient.abs().sum() > 0 for gradient in found[0][:2])


@pytest.mark.parametrize("case", CASES_OF_LEARNT_LR, ids=str)
def test_a_loss_after_three_steps_has_a_gradient_for_lr(case: Case) -> None:
    """Torch's Adam, RMSprop and NAdam fail: they change tensors in place that autograd needs."""

    def loss_after_three_steps(lr: Tensor) -> Tensor:
        param = torch.linspace(1, 2, 5, dtype=torch.float64).requires_grad_().clone()
        options = {**case.options, "lr": lr, "differentiable": True}
        optimizer = Case(case.name, options).ours([param])
        for _ in range(3):
            loss = (param.clone() ** 4).sum()
            param.grad = torch.autograd.grad(loss, param, create_graph=True)[0]
            optimizer.step()
        return (param**2).sum()

    lr = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(loss_after_three_steps, (lr,))
    assert torch.autograd.grad(loss_after_three_steps(lr), lr)[0] != 0


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_a_step_count_that_requires_grad_raises_torchs_error(name: str) -> None:
    case = CASE_OF_DENSE_CLASS[name]
    messages = []
    for make in (case.ours, case.theirs):
        state = states_in_training(case)
        state["step"].requires_grad_()
        with pytest.raises(RuntimeError) as caught:
            functional_step(make, state, *param_and_grad())
        messages.append(str(caught.value))

    assert messages[0] == messages[1]


@optimizer()
def Averaged(
    p: Any,
    g: Any,
    /,
    a: Any = state("average", init="p"),
    s: Any = state("scale", init="start"),
    *,
    lr: Any = hyper(0.1),
    start: Any = hyper(0.5),
) -> None:
    """A step towards a copy of the first parameter, with a scale per element."""
    s = s + 0.1 * g
    a = 0.9 * a + 0.1 * p
    p = p - lr * s * (p - a) - lr * g


@pytest.mark.parametrize("init_first", [False, True])
def test_gradients_reach_the_initial_value_of_a_state(init_first: bool) -> None:
    """The first parameter is also a state's initial value; `init_state` may create the state."""
    cls = optgen.load(Averaged)

    def function(first: Tensor, start: Tensor) -> Tensor:
        param = first.clone()
        optimizer = cls([param], start=start, differentiable=True)
        if init_first:
            optimizer.init_state()
        for _ in range(3):
            param.grad = param.clone() ** 2  # the step changes the parameter in place
            optimizer.step()
        return param

    first, _ = param_and_grad()
    start = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (first, start))
