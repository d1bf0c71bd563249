"""Test against torch that a step takes earlier changes into account, in any order of lowerings."""

from contextlib import nullcontext
from random import Random
from typing import Any

import pytest
import torch
from runtime.changes import CHANGES, Change, change_nothing, give_gradients, parameters
from runtime.training import error
from torch import Tensor

import optgen.optim
from optgen import use_lowering

MODULES = (optgen.optim, torch.optim)
RULES: list[tuple[str, dict[str, Any]]] = [
    ("Adam", {"amsgrad": True}),
    ("SGD", {"momentum": 0.9, "dampening": 0.5}),
    ("NAdam", {}),
    ("RMSprop", {"momentum": 0.5}),
    ("Adafactor", {"weight_decay": 0.1}),
]


def forget_the_states(optimizer: Any, params: list[Tensor]) -> None:
    optimizer.state.clear()


def replace_a_parameter(optimizer: Any, params: list[Tensor]) -> None:
    old, new = params[3], torch.nn.Parameter(params[3].detach().clone())
    new.grad = old.grad
    optimizer.state[new] = optimizer.state.pop(old)
    params[3] = new
    join_the_groups(optimizer, params)


def give_a_parameter_a_group(optimizer: Any, params: list[Tensor]) -> None:
    first = optimizer.param_groups[0]
    first["params"] = [param for param in params if param is not params[1]]
    optimizer.param_groups[1:] = [{**first, "params": [params[1]], "lr": 0.03}]


def join_the_groups(optimizer: Any, params: list[Tensor]) -> None:
    del optimizer.param_groups[1:]
    optimizer.param_groups[0]["params"] = list(reversed(params))


def write_to_a_tensor(optimizer: Any, params: list[Tensor]) -> None:
    group = optimizer.param_groups[0]
    if isinstance(group["lr"], Tensor):
        group["lr"].mul_(0.5)
    else:
        group["lr"] = torch.tensor(0.02, dtype=torch.float64)


MORE_CHANGES: list[Change] = [
    forget_the_states,
    replace_a_parameter,
    give_a_parameter_a_group,
    join_the_groups,
    write_to_a_tensor,
]
LOWERINGS = (None, None, None, "forloop", "foreach", "fused_cpu")


def random_changes(rng: Random) -> list[tuple[Change, str | None]]:
    """Draw ten changes of two kinds, so that a kind comes several times, also in a row."""
    kinds = rng.choices([*CHANGES, *MORE_CHANGES], k=2)
    return [(rng.choice(kinds), rng.choice(LOWERINGS)) for _ in range(10)]


@pytest.mark.parametrize(("name", "options"), RULES, ids=[name for name, _ in RULES])
def test_a_trajectory_with_changes_equals_torchs(name: str, options: dict[str, Any]) -> None:
    rng = Random(name)
    for _ in range(20):
        changes = random_changes(rng)
        ours, theirs = (params_and_states(getattr(m, name), options, changes) for m in MODULES)
        for found, expected in zip(ours, theirs, strict=True):
            assert set(found) == set(expected)
            assert error([found[key] for key in expected], list(expected.values())) < 1e-10


def params_and_states(
    cls: Any, options: dict[str, Any], changes: list[tuple[Change, str | None]]
) -> list[dict[str, Tensor]]:
    """Train with a change before each step; return each parameter with its state."""
    params = parameters()
    # torch's Adafactor takes no empty parameter
    params[3] = torch.nn.Parameter(params[4].data[0].clone())
    optimizer = cls(params, **options)
    for step, (change, lowering) in enumerate(
        [(change_nothing, None), *changes, (change_nothing, None)]
    ):
        give_gradients(params, step)
        change(optimizer, params)
        with use_lowering(lowering) if lowering else nullcontext():
            optimizer.step()
    return [{"param": param, **optimizer.state[param]} for param in params]
