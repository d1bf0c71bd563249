"""Test hyperparameters that are tensors: they may change in place, and be learnt."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from optim.classes import CLASSES, ours_and_torchs, parameters, train
from parity.cases import CASE_OF_DENSE_CLASS, Case
from parity.classes import MATRICES, NAMES, SPARSE
from torch import Tensor

from optgen import use_lowering

Place = tuple[str, int | None]  # an argument's name, and the index in its tuple, if it is one
# matrix classes compute in bfloat16
LEARNT = [name for name in CLASSES if name not in (*SPARSE, *MATRICES)]
READ_BY_THE_CONSTRUCTOR = [("Adagrad", ("initial_accumulator_value", None))]
VALUES = {"lr": 0.05, "lr_decay": 0.1, "lambd": 0.1, "t0": 1.5, "eps": 0.01, "d": 1.001}


def numbers(name: str) -> Iterator[Place]:
    """Yield every number among the class's arguments: its name, and its index in a tuple."""
    for argument in inspect.signature(ours_and_torchs(name)[1]).parameters.values():
        match argument.default:
            case bool():
                pass
            case int() | float():
                yield argument.name, None
            case tuple(items):
                yield from ((argument.name, i) for i, item in enumerate(items) if item is not None)


def options(name: str, key: str) -> dict[str, Any]:
    """Return arguments with which every state exists and every number has an effect."""
    found = {
        a.name: a.default for a in inspect.signature(ours_and_torchs(name)[0]).parameters.values()
    }
    found = {**found, **CASE_OF_DENSE_CLASS.get(name, Case(name)).options}
    del found["params"]
    return found | ({"nesterov": False} if key == "dampening" else {})


def with_tensor(name: str, place: Place, value: Tensor) -> dict[str, Any]:
    """Return the arguments with a tensor for one number. Adam takes only tensors as both betas."""
    (key, index), found = place, options(name, place[0])
    if index is None:
        return {**found, key: value}
    items = [torch.tensor(x) if name in ("Adam", "AdamW") else x for x in found[key]]
    items[index] = value
    return {**found, key: tuple(items)}


def start(name: str, place: Place) -> float:
    (key, index), found = place, options(name, place[0])
    return float(found[key][index]) if index is not None else VALUES.get(key, found[key] or 0.1)


@pytest.fixture
def exact_scalars() -> Iterator[None]:
    """Make float64 the default dtype, which scalar states have: finite differences need it."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("exact_scalars")
@pytest.mark.parametrize(
    ("name", "place"),
    [
        (name, place)
        for name in LEARNT
        for place in numbers(name)
        if (name, place) not in READ_BY_THE_CONSTRUCTOR
    ],
    ids=str,
)
def test_every_number_can_be_learnt(name: str, place: Place) -> None:
    """Compare the gradient of a loss after three steps with finite differences."""

    def loss_after_three_steps(value: Tensor) -> Tensor:
        params = [torch.linspace(1, 2, 4, dtype=torch.float64).view(2, 2).requires_grad_().clone()]
        options = with_tensor(name, place, value)
        optimizer = ours_and_torchs(name)[0](params, **{**options, "differentiable": True})
        for _ in range(3):
            loss = sum((param.clone() ** 4).sum() for param in params)
            for param, grad in zip(
                params, torch.autograd.grad(loss, params, create_graph=True), strict=True
            ):
                param.grad = grad
            optimizer.step()
        return sum((param**2).sum() for param in params)

    value = torch.tensor(start(name, place), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss_after_three_steps, (value,))


@pytest.mark.parametrize("name", NAMES)
def test_a_scheduler_changes_a_tensor_in_place(name: str) -> None:
    """The tensor has one element in one axis, which torch takes too; torch's class gets a float.

    With a tensor torch's LBFGS is wrong: its last step size is the tensor itself. So the scheduler
    changes how far the last step seems to have moved the parameters.
    """
    lr = torch.tensor([0.1], dtype=torch.float64)
    trained = []
    for cls, rate in zip(ours_and_torchs(name), (lr, 0.1), strict=True):
        params = parameters(name)
        optimizer = cls(params, lr=rate)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for step in range(4):
            train(name, optimizer, params, 1, start=step)
            scheduler.step()
        trained.append(params)
    assert lr == 0.1 * 0.5**4

    bound = 1e-2 if name in MATRICES else 1e-10  # torch multiplies matrices in bfloat16
    for ours, theirs in zip(*trained, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=bound, atol=bound)


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_tensor_betas_may_change_between_steps(name: str, lowering: str) -> None:

    trained = []
    for cls in ours_and_torchs(name):
        params = parameters(name)
        betas = torch.tensor([0.8], dtype=torch.float64), torch.tensor(0.9, dtype=torch.float64)
        optimizer = cls(
            params, betas=betas, **({} if cls is ours_and_torchs(name)[0] else {"foreach": False})
        )
        for step in range(4):
            with use_lowering(lowering):
                train(name, optimizer, params, 1, start=step)
            for beta in betas:
                beta.mul_(0.9)
        trained.append(params)

    for ours, theirs in zip(*trained, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
