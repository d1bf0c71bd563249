"""Test for-loop and foreach against torch's for-loop, through the whole runtime."""

from typing import Any

import pytest
import torch
from runtime.training import error, parameters, states, steps_with_gradients, train

import optgen
from optgen import use_lowering
from optgen.optim import Adam
from optgen.runtime.batch.gather import gather_batches
from optgen.runtime.eager.call import buckets

CONFIGURATIONS: list[tuple[str, dict[str, Any]]] = [
    ("Adam", {}),
    ("Adam", {"weight_decay": 0.1}),
    ("Adam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("Adam", {"amsgrad": True}),
    ("Adam", {"maximize": True, "lr": 0.01, "betas": (0.5, 0.9)}),
    ("AdamW", {"weight_decay": 0.1, "amsgrad": True}),
    ("SGD", {"lr": 0.01}),
    ("SGD", {"lr": 0.01, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.01, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("RMSprop", {"weight_decay": 0.1}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("RAdam", {"weight_decay": 0.1}),
    ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("NAdam", {"weight_decay": 0.1}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True, "momentum_decay": 0.01}),
    ("Adamax", {"weight_decay": 0.1}),
    ("Adadelta", {"weight_decay": 0.1, "maximize": True}),
]


@pytest.mark.one_case_in(5)
@pytest.mark.parametrize(("name", "options"), CONFIGURATIONS)
@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_trajectories_equal_torchs(
    name: str, lowering: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    ours, theirs = parameters(dtype), parameters(dtype)
    optimizer = getattr(optgen.optim, name)(ours, **options)
    reference = getattr(torch.optim, name)(theirs, foreach=False, **options)

    with use_lowering(lowering):
        train(optimizer, ours, 50)
    train(reference, theirs, 50)

    assert error(ours, theirs) < 1e-12
    assert error(states(optimizer), states(reference)) < 1e-12


@pytest.mark.parametrize(
    "name", ["SGD", "Adam", "AdamW", "RMSprop", "RAdam", "NAdam", "Adamax", "Adadelta"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_tensor_lr_of_lower_precision_rounds_as_torchs_does(
    name: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    ours, theirs = parameters(), parameters()
    options = {"lr": torch.full(shape, 0.01, dtype=dtype), "weight_decay": 0.1}

    train(getattr(optgen.optim, name)(ours, **options), ours, 20)
    train(getattr(torch.optim, name)(theirs, foreach=False, **options), theirs, 20)

    assert error(ours, theirs) < 1e-12


def test_a_tensor_lr_that_is_read_as_a_number_keeps_the_fused_lowering() -> None:
    optimizer = optgen.optim.RAdam(parameters(), lr=torch.tensor(0.01))

    assert optgen.explain(optimizer) == "group 0: fused C++: CPU tensors, float64"


def test_tensor_hyperparameters_may_require_grad() -> None:
    ours, theirs = parameters(), parameters()
    lr = torch.tensor(0.01, requires_grad=True)

    train(Adam(ours, lr=lr), ours, 5)
    train(torch.optim.Adam(theirs, lr=0.01, foreach=False), theirs, 5)

    assert error(ours, theirs) < 1e-6


@pytest.mark.parametrize(("name", "options"), CONFIGURATIONS)
def test_trajectories_of_the_functional_form_equal_torchs(
    name: str, options: dict[str, Any]
) -> None:
    ours, theirs = parameters(), parameters()
    for param in (*ours, *theirs):
        param.requires_grad_(False)
    optimizer = getattr(optgen.optim, name)(ours, differentiable=True, **options)

    train(optimizer, ours, 20)
    train(getattr(torch.optim, name)(theirs, foreach=False, **options), theirs, 20)

    assert error(ours, theirs) < 1e-12


@pytest.mark.parametrize("amsgrad", [False, True])
def test_autograd_goes_through_differentiable_steps(amsgrad: bool) -> None:
    def loss_after_two_steps(lr: torch.Tensor) -> torch.Tensor:
        param = torch.linspace(1, 2, 5, dtype=torch.float64, requires_grad=True).clone()
        optimizer = Adam([param], lr=lr, differentiable=True, amsgrad=amsgrad)
        for _ in range(2):
            loss = (param.clone() ** 4).sum()
            param.grad = torch.autograd.grad(loss, param, create_graph=True)[0]
            optimizer.step()
        return (param**2).sum()

    lr = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(loss_after_two_steps, (lr,))
    assert torch.autograd.grad(loss_after_two_steps(lr), lr)[0] != 0


def test_capturable_raises_torchs_error_on_the_cpu() -> None:
    params = [torch.nn.Parameter(torch.ones(2))]
    params[0].grad = torch.ones(2)

    with pytest.raises(AssertionError, match="If capturable=True, params and state_steps must be"):
        Adam(params, capturable=True).step()


def test_equal_steps_share_a_bucket_and_a_parameter_that_joins_late_has_its_own() -> None:
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = Adam(params, foreach=False)
    for params_with_gradients in (params[:2], params):
        for param in params_with_gradients:
            param.grad = torch.ones(2)
        optimizer.step()
    (batch,) = gather_batches(optimizer)

    sizes = [
        len(columns[0]) for columns, _, _ in buckets(optimizer.rule, batch, equal_scalars=True)
    ]

    assert sizes == [2, 1]
    assert [float(optimizer.state[p]["step"]) for p in params] == [2, 2, 1]


def test_the_tensors_of_a_bucket_have_one_dtype() -> None:
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float32]
    params = [torch.nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in dtypes]
    optimizer = Adam(params, foreach=True)
    for _ in steps_with_gradients(params, 1):
        optimizer.step()
    (batch,) = gather_batches(optimizer)

    results = [columns[0] for columns, _, _ in buckets(optimizer.rule, batch, equal_scalars=True)]

    assert [[p.dtype for p in bucket] for bucket in results] == [
        [torch.float32, torch.float32],
        [torch.float64],
        [torch.bfloat16],
    ]


@pytest.mark.parametrize("found_inf", [0.0, 1.0])
def test_a_forced_lowering_unscales_gradients_as_fused_does(found_inf: float) -> None:
    params = [torch.nn.Parameter(torch.ones(3))]
    params[0].grad = torch.full((3,), 8.0)
    optimizer = Adam(params, fused=True)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(found_inf)

    with use_lowering("forloop"):
        optimizer.step()

    assert params[0].grad.tolist() == [8.0 if found_inf else 2.0] * 3
    assert (params[0] == 1).all() == bool(found_inf)
    assert float(optimizer.state[params[0]]["step"]) == 1 - found_inf
