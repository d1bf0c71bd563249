"""Test steps in `swap_in_optimizer_params_and_state`, and errors, whose messages are torch's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from optim.classes import CLASSES
from parity.classes import SPARSE_CLASSES
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
            param.grad = grad.to_sparse(1) if type(optimizer).__name__ in SPARSE_CLASSES else grad
        optimizer.step()


def optimizers(name: str, *param_lists: list[Tensor]) -> list[Any]:
    """Return an optimizer for each list of parameters, with two groups, after two steps."""
    results = []
    for params in param_lists:
        optimizer = getattr(optgen.optim, name)(params[:1])
        optimizer.add_param_group({"params": params[1:], "lr": 0.5})
        train(optimizer, params, 2)
        results.append(optimizer)
    return results


def by_name(params: list[Tensor]) -> dict[str, Tensor]:
    return dict(zip("ab", params, strict=True))


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "SGD"])
def test_a_step_uses_the_parameters_and_state_that_are_swapped_in(name: str) -> None:
    own, swapped_in = parameters(0), parameters(1)
    optimizer, donor = optimizers(name, own, swapped_in)
    donor.param_groups[0]["lr"] = 0.25
    params_before = [param.detach().clone() for param in own]
    checkpoint_before = copy.deepcopy(optimizer.state_dict())
    expected = copy.deepcopy(donor)
    expected_params = [param for group in expected.param_groups for param in group["params"]]
    train(expected, expected_params, 1)

    with swap_in_optimizer_params_and_state(optimizer, by_name(swapped_in), donor.state_dict()):
        assert [g["lr"] for g in optimizer.param_groups] == [0.25, 0.5]
        train(optimizer, swapped_in, 1)
        optimizer.param_groups[0]["added"] = 1

    for param, expected_param in zip(swapped_in, expected_params, strict=True):
        assert torch.equal(param, expected_param)
        for key, expected_value in expected.state[expected_param].items():
            if isinstance(expected_value, Tensor):  # the step changes the donor's state in place
                assert torch.equal(donor.state[param][key], expected_value)
    assert all(map(torch.equal, own, params_before))
    torch.testing.assert_close(optimizer.state_dict(), checkpoint_before, rtol=0, atol=0)
    train(optimizer, own, 1)
    assert not any(map(torch.equal, own, params_before))


def test_parameters_and_state_come_back_after_an_error() -> None:
    params, swapped_in = parameters(0), parameters(1)
    (optimizer,) = optimizers("Adam", params)
    state = optimizer.state

    with (
        pytest.raises(ZeroDivisionError),
        swap_in_optimizer_params_and_state(optimizer, by_name(swapped_in), optimizer.state_dict()),
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


needs_torchs_swap = pytest.mark.skipif(
    not hasattr(torch.optim, "swap_in_optimizer_params_and_state"),
    reason="this torch has no swap_in_optimizer_params_and_state",
)


@needs_torchs_swap
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
        params_by_name = by_name(params)
        if mistake == "too few":
            del params_by_name["b"]
        with pytest.raises(RuntimeError) as caught, swap(optimizer, params_by_name, state):
            pass
        messages.append(str(caught.value))

    assert messages[0] == messages[1]


@needs_torchs_swap
def test_torchs_swap_works_on_our_optimizers() -> None:
    results = []
    for swap in (
        swap_in_optimizer_params_and_state,
        torch.optim.swap_in_optimizer_params_and_state,
    ):
        swapped_in = parameters(1)
        optimizer, donor = optimizers("Adam", parameters(0), swapped_in)
        with swap(optimizer, by_name(swapped_in), donor.state_dict()):
            train(optimizer, swapped_in, 1)
        results.append(swapped_in)

    assert all(map(torch.equal, *results))
