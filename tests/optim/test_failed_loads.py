"""A load that fails leaves an optimizer as it was."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from optgen import optim


def stepped(cls: Any) -> tuple[Any, list[Tensor]]:
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(6, 6)) for _ in range(2)]
    optimizer = cls(params)
    for _ in range(3):
        step(optimizer, params)
    return optimizer, params


def step(optimizer: Any, params: list[Tensor]) -> None:
    for param in params:
        param.grad = param.detach().cos()
    optimizer.step()


@pytest.mark.parametrize("name", ["AdamW", "Adafactor", "AdamW8bit", "ScheduleFreeAdamW", "SOAP"])
def test_a_step_count_that_is_no_number(name: str) -> None:
    optimizer, params = stepped(getattr(optim, name))
    twin, twin_params = stepped(getattr(optim, name))
    state, groups = optimizer.state, optimizer.param_groups
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][1]["step"] = "three"
    with pytest.raises(ValueError, match="to float"):
        optimizer.load_state_dict(saved)
    assert optimizer.state is state
    assert optimizer.param_groups is groups
    step(optimizer, params)
    step(twin, twin_params)
    assert all(map(torch.equal, params, twin_params))


def test_a_member_in_eval_mode_goes_back_to_its_training_values() -> None:
    averaged = [torch.nn.Parameter(torch.linspace(-2, 2, 4000).bfloat16())]
    others = [torch.nn.Parameter(torch.ones(4))]
    members = [optim.ScheduleFreeAdamW(averaged, lr=0.1), optim.AdamW(others)]
    chained = optim.ChainedOptimizer(members)
    for _ in range(5):
        step(chained, averaged + others)
    rest = members[0].state[averaged[0]]["rest"].clone()
    trained = averaged[0].detach().clone()
    chained.eval()
    saved = copy.deepcopy(chained.state_dict())
    saved["state"][1]["step"] = "three"
    with pytest.raises(ValueError, match="to float"):
        chained.load_state_dict(saved)
    chained.train()
    assert torch.equal(averaged[0], trained)
    assert torch.equal(members[0].state[averaged[0]]["rest"], rest)
