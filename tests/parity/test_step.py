"""Test closures, schedulers and hooks, and the refusal of capturable steps on a CPU."""

from __future__ import annotations

import pytest
import torch
from parity.cases import CASE_OF_DENSE_CLASS, LOWERINGS, Case
from parity.classes import NAMES, torch_has_flag
from parity.trajectories import forced_lowering

import optgen.optim


@pytest.mark.parametrize("name", [name for name in NAMES if torch_has_flag(name, "capturable")])
def test_a_capturable_step_on_a_cpu_raises_torchs_error(name: str) -> None:
    messages = []
    for module in (optgen.optim, torch.optim):
        param = torch.nn.Parameter(torch.ones(3))
        param.grad = torch.ones(3)
        with pytest.raises(AssertionError) as caught:
            getattr(module, name)([param], capturable=True).step()
        messages.append(str(caught.value).partition("['")[0])

    assert messages[0] == messages[1]


@pytest.mark.parametrize("lowering", [None, *LOWERINGS])
@pytest.mark.parametrize("case", CASE_OF_DENSE_CLASS.values(), ids=str)
def test_a_step_enables_gradients_for_its_closure_and_returns_the_loss(
    case: Case, lowering: str | None
) -> None:
    losses = []
    for make in (case.ours, case.theirs):
        param = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        optimizer = make([param])

        def closure(param: torch.Tensor = param) -> torch.Tensor:
            param.grad = None
            loss = (param**2).sum()
            loss.backward()
            return loss

        with forced_lowering(lowering), torch.no_grad():
            losses.append([optimizer.step(closure).detach() for _ in range(20)])

    torch.testing.assert_close(losses[0], losses[1])
    assert losses[0][-1] != losses[0][0]


@pytest.mark.parametrize("lowering", [None, *LOWERINGS])
@pytest.mark.parametrize("case", CASE_OF_DENSE_CLASS.values(), ids=str)
def test_a_scheduler_and_a_hook_take_effect_in_every_step(case: Case, lowering: str | None) -> None:
    finals = []
    for make in (case.ours, case.theirs):
        param = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
        optimizer = make([param])
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)

        def halve(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
            for param in optimizer.param_groups[0]["params"]:
                param.grad.mul_(0.5)

        optimizer.register_step_pre_hook(halve)
        for _ in range(10):
            param.grad = torch.cos(param.detach())
            with forced_lowering(lowering):
                optimizer.step()
            scheduler.step()
        finals.append(param.detach())

    torch.testing.assert_close(finals[0], finals[1], rtol=1e-12, atol=0)
