"""Test tensor hyperparameters: changes in place take effect, and autograd differentiates them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from optim.classes import CLASSES, ours_and_torchs, parameters, train
from parity.cases import CASE_OF_DENSE_CLASS, Case
from parity.classes import MATRIX_CLASSES, NAMES, SPARSE_CLASSES
from torch import Tensor

from optgen import use_lowering

Place = tuple[str, int | None]
"""An argument's name, and an index if the argument is a tuple."""
# Classes for matrices compute in bfloat16.
DIFFERENTIABLE = [name for name in CLASSES if name not in (*SPARSE_CLASSES, *MATRIX_CLASSES)]
READ_BY_THE_CONSTRUCTOR = [("Adagrad", ("initial_accumulator_value", None))]
VALUES_INSTEAD_OF_DEFAULTS = {
    "lr": 0.05,
    "lr_decay": 0.1,
    "lambd": 0.1,
    "t0": 1.5,
    "eps": 0.01,
    "d": 1.001,
}


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
    """Return the arguments with a tensor for one number.

    In Adam and AdamW both betas are then tensors, because a mixture is refused.
    """
    (key, index), found = place, options(name, place[0])
    if index is None:
        return {**found, key: value}
    items = [torch.tensor(x) if name in ("Adam", "AdamW") else x for x in found[key]]
    items[index] = value
    return {**found, key: tuple(items)}


def value_at(name: str, place: Place) -> float:
    """Return a number at which the rule is differentiable in this argument."""
    (key, index), found = place, options(name, place[0])
    if index is not None:
        return float(found[key][index])
    return VALUES_INSTEAD_OF_DEFAULTS.get(key, found[key] or 0.1)


@pytest.fixture
def float64_scalar_states() -> Iterator[None]:
    """Make float64 the default dtype, and so that of scalar states, for finite differences."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64_scalar_states")
@pytest.mark.parametrize(
    ("name", "place"),
    [
        (name, place)
        for name in DIFFERENTIABLE
        for place in numbers(name)
        if (name, place) not in READ_BY_THE_CONSTRUCTOR
    ],
    ids=str,
)
def test_every_number_is_differentiable(name: str, place: Place) -> None:
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

    value = torch.tensor(value_at(name, place), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss_after_three_steps, (value,))


@pytest.mark.parametrize("name", NAMES)
def test_a_scheduler_changes_a_tensor_in_place(name: str) -> None:
    """Our class gets a tensor of shape (1,), and torch's class a float.

    Torch's LBFGS is wrong with a tensor: its last step size is the tensor itself. So the scheduler
    changes how far the last step seems to have moved the parameters.
    """
    lr = torch.tensor([0.1], dtype=torch.float64)
    params_of_classes = []
    for cls, rate in zip(ours_and_torchs(name), (lr, 0.1), strict=True):
        params = parameters(name)
        optimizer = cls(params, lr=rate)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for step in range(4):
            train(name, optimizer, params, 1, start=step)
            scheduler.step()
        params_of_classes.append(params)
    assert lr == 0.1 * 0.5**4

    bound = 1e-2 if name in MATRIX_CLASSES else 1e-10  # torch multiplies matrices in bfloat16
    for ours, theirs in zip(*params_of_classes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=bound, atol=bound)


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_tensor_betas_can_change_between_steps(name: str, lowering: str) -> None:
    params_of_classes = []
    for cls in ours_and_torchs(name):
        params = parameters(name)
        betas = torch.tensor([0.8], dtype=torch.float64), torch.tensor(0.9, dtype=torch.float64)
        flags = {} if cls is ours_and_torchs(name)[0] else {"foreach": False}
        optimizer = cls(params, betas=betas, **flags)
        for step in range(4):
            with use_lowering(lowering):
                train(name, optimizer, params, 1, start=step)
            for beta in betas:
                beta.mul_(0.9)
        params_of_classes.append(params)

    for ours, theirs in zip(*params_of_classes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
