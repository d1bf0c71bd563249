"""Test `swap_in_optimizer_params_and_state`: its steps, and messages equal to torch's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from optim.classes import CLASSES
from parity.classes import SPARSE
from torch import Tensor

import optgen.optim
from optgen.optim import Adam, swap_in_optimizer_params_and_state


def parameters(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64) for s in ((3, 2), (2, 2))]
    return [torch.nn.Parameter(value) for value in drawn]


def train(optimizer: Any, params: list[Tensor], steps: int) -> None:
    for step in range(steps):
        for index, param in enumerate(params):
            grad = torch.full_like(param, 0.1 * (step + index + 1))
            param.grad = grad.to_sparse(1) if type(optimizer).__name__ in SPARSE else grad
        optimizer.step()


def optimizers(name: str, *params: list[Tensor]) -> list[Any]:
    """Return an optimizer for each list of parameters, with two groups, after two steps."""
    trained = []
    for each in params:
        optimizer = getattr(optgen.optim, name)(each[:1])
        optimizer.add_param_group({"params": each[1:], "lr": 0.5})
        train(optimizer, each, 2)
        trained.append(optimizer)
    return trained


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "SGD"])
def test_a_step_uses_the_parameters_and_state_that_are_swapped_in(name: str) -> None:
    live, other = parameters(0), parameters(1)
    optimizer, twin = optimizers(name, live, other)
    twin.param_groups[0]["lr"] = 0.25
    state = twin.state_dict()
    before = copy.deepcopy([p.detach() for p in live]), copy.deepcopy(optimizer.state_dict())
    expected = copy.deepcopy(twin)
    train(expected, [p for g in expected.param_groups for p in g["params"]], 1)

    with swap_in_optimizer_params_and_state(optimizer, dict(zip("ab", other, strict=True)), state):
        assert [g["lr"] for g in optimizer.param_groups] == [0.25, 0.5]
        train(optimizer, other, 1)
        optimizer.param_groups[0]["added"] = 1

    for param, group in zip(other, expected.param_groups, strict=True):
        assert torch.equal(param, group["params"][0])
        values = [
            list(o.state[p].values()) for o, p in ((twin, param), (expected, group["params"][0]))
        ]
        for found, expected_value in zip(*values, strict=True):
            if isinstance(expected_value, Tensor):  # changed in place, in the twin's own state
                assert torch.equal(found, expected_value)
    assert all(map(torch.equal, live, before[0]))
    torch.testing.assert_close(optimizer.state_dict(), before[1], rtol=0, atol=0)
    train(optimizer, live, 1)
    assert not any(map(torch.equal, live, before[0]))


def test_parameters_and_state_come_back_after_an_error() -> None:
    params, other = parameters(0), parameters(1)
    (optimizer,) = optimizers("Adam", params)
    state = optimizer.state

    with (
        pytest.raises(ZeroDivisionError),
        swap_in_optimizer_params_and_state(
            optimizer, dict(zip("ab", other, strict=True)), optimizer.state_dict()
        ),
    ):
        raise ZeroDivisionError
    assert optimizer.state is state
    assert optimizer.param_groups[0]["params"][0] is params[0]


def in_place(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """Return a function that changes a state dict in place and returns it."""

    def apply(state: dict[str, Any]) -> Any:
        change(state)
        return state

    return apply


MISTAKES: list[Callable[[dict[str, Any]], Any]] = [
    lambda state: [state],
    lambda state: {"param_groups": state["param_groups"]},
    in_place(lambda state: state["state"].update({torch.ones(1): {}})),
    in_place(lambda state: state["state"].update({0: 3})),
    lambda state: {"state": state["state"]},
    in_place(lambda state: state["param_groups"].pop()),
    in_place(lambda state: state["param_groups"].__setitem__(0, [])),
    in_place(lambda state: state["param_groups"][0].update(params="ab")),
    in_place(lambda state: state["param_groups"][0].update(params=["a"])),
    in_place(lambda state: state["param_groups"][1].update(params=[1, 2])),
    in_place(lambda state: state["param_groups"][1].update(other=1)),
    in_place(lambda state: state["param_groups"][1].pop("lr")),
    in_place(lambda state: state["state"].update({7: {}, "more": {}})),
]


@pytest.mark.skipif(
    not hasattr(torch.optim, "swap_in_optimizer_params_and_state"), reason="this torch has none"
)
@pytest.mark.parametrize("mistake", [*range(len(MISTAKES)), "no state", "too few"])
def test_mistakes_raise_torchs_errors(mistake: int | str) -> None:
    messages = []
    for swap in (
        swap_in_optimizer_params_and_state,
        torch.optim.swap_in_optimizer_params_and_state,
    ):
        params = parameters(0)
        (optimizer,) = optimizers("Adam", params)
        state: Any = copy.deepcopy(optimizer.state_dict())
        if isinstance(mistake, int):
            state = MISTAKES[mistake](state)
        if mistake == "no state":
            optimizer = Adam(params)
        params_by_name = dict(zip("ab", params, strict=True))
        if mistake == "too few":
            del params_by_name["b"]
        with pytest.raises(RuntimeError) as caught, swap(optimizer, params_by_name, state):
            pass
        messages.append(str(caught.value))

    assert messages[0] == messages[1]


def test_torchs_swap_works_on_our_optimizers() -> None:
    if not hasattr(torch.optim, "swap_in_optimizer_params_and_state"):
        pytest.skip("this torch has none")
    results = []
    for swap in (
        swap_in_optimizer_params_and_state,
        torch.optim.swap_in_optimizer_params_and_state,
    ):
        live, other = parameters(0), parameters(1)
        optimizer, twin = optimizers("Adam", live, other)
        with swap(optimizer, dict(zip("ab", other, strict=True)), twin.state_dict()):
            train(optimizer, other, 1)
        results.append(other)

    assert all(map(torch.equal, *results))
