"""Test rules with square states at run time: checkpoints, refusals, NaN and dtypes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from spec_files import spec_file
from spec_texts import LR, spec
from torch import Tensor

import optgen
from optgen import use_lowering
from optgen.spec import Spec

SHAPES = ((4, 3), (2, 3, 3), (5,), (4, 3))
Shampoo: Any = optgen.load(spec_file("shampoo"))


def parameters(dtype: torch.dtype = torch.float64, shapes: Any = SHAPES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def step(optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
    optimizer.step()


def check_equal(optimizer: Any, reference: Any) -> None:
    """Check that two optimizers have equal parameters and states."""
    for param, expected in zip(params_of(optimizer), params_of(reference), strict=True):
        assert torch.equal(param, expected)
        states, expected_states = optimizer.state[param], reference.state[expected]
        assert states.keys() == expected_states.keys()
        for key, value in states.items():
            assert torch.equal(value, expected_states[key])


def test_square_states_have_the_leading_axes_of_the_parameter() -> None:
    optimizer = Shampoo(parameters())
    step(optimizer, 1)
    matrix, stack, vector, _ = optimizer.param_groups[0]["params"]
    shapes = {key: tuple(value.shape) for key, value in optimizer.state[matrix].items()}
    assert (shapes["gram_left"], shapes["gram_right"]) == ((4, 4), (3, 3))
    assert optimizer.state[stack]["gram_left"].shape == (2, 3, 3)
    assert optimizer.state[vector].keys() == {"step", "sum"}


def copies(optimizer: Any) -> Iterator[Any]:
    """Yield copies of an optimizer: by `copy`, by pickle, and by a checkpoint."""
    yield copy.deepcopy(optimizer)
    yield pickle.loads(pickle.dumps(optimizer))
    loaded = Shampoo([p.detach().clone().requires_grad_() for p in params_of(optimizer)])
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    yield loaded


def params_of(optimizer: Any) -> list[Tensor]:
    params: list[Tensor] = optimizer.param_groups[0]["params"]
    return params


def test_copies_and_checkpoints_take_the_same_next_step() -> None:
    optimizer = Shampoo(parameters())
    step(optimizer, 1)
    others = list(copies(optimizer))
    step(optimizer, 2)
    for other in others:
        step(other, 2)
        check_equal(other, optimizer)


def test_a_state_of_another_shape_is_an_error() -> None:
    optimizer = Shampoo(parameters())
    step(optimizer, 1)
    first = params_of(optimizer)[0]
    optimizer.state[first]["gram_left"] = torch.zeros(3, 3, dtype=torch.float64)
    before = [p.detach().clone() for p in params_of(optimizer)]
    with pytest.raises(RuntimeError, match="gram_left has the shape"):
        step(optimizer, 2)
    assert all(map(torch.equal, params_of(optimizer), before))


def test_cpp_takes_the_rule() -> None:
    optimizer = Shampoo(parameters())
    step(optimizer, 1)
    assert "fused C++: CPU tensors, float64; torch computes" in str(optgen.explain(optimizer))
    step(Shampoo(parameters(), fused=True), 1)


def test_complex_parameters_and_sparse_gradients_are_refused() -> None:
    param = torch.zeros(2, 2, dtype=torch.complex64, requires_grad=True)
    param.grad = torch.ones_like(param)
    with pytest.raises(RuntimeError, match="does not support complex"):
        Shampoo([param]).step()
    param = torch.zeros(3, 2, requires_grad=True)
    param.grad = torch.eye(3)[:, :2].to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        Shampoo([param]).step()


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
def test_a_gradient_of_nan_does_not_reach_other_parameters(lowering: Any) -> None:
    optimizers = [Shampoo(parameters()), Shampoo(parameters())]
    for optimizer in optimizers:
        step(optimizer, 1)
    with_nan, without_nan = optimizers
    generator = torch.Generator().manual_seed(9)
    for index, params in enumerate(zip(*map(params_of, optimizers), strict=True)):
        grad = torch.randn(SHAPES[index], generator=generator, dtype=torch.float64)
        for param in params:
            param.grad = grad.clone()
    params_of(with_nan)[0].grad[0, 0] = torch.nan  # type: ignore[index]
    for optimizer in optimizers:
        with use_lowering(lowering):
            optimizer.step()
    assert params_of(with_nan)[0].isnan().all()
    for param, expected in zip(params_of(with_nan)[1:], params_of(without_nan)[1:], strict=True):
        torch.testing.assert_close(param, expected, rtol=1e-12, atol=0)


def test_a_matrix_without_elements_is_stepped() -> None:
    for shape in ((0, 3), (3, 0), (2, 0, 4), (0, 2, 2)):
        optimizer = Shampoo(parameters(shapes=(shape, shape)))
        for lowering in ("forloop", "foreach"):
            with use_lowering(lowering):  # type: ignore[arg-type]
                step(optimizer, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_steps_in_low_precision_compute_in_float32(dtype: torch.dtype) -> None:
    """A step in 16 bits equals a float32 step from equal values, rounded once."""
    in_low_precision = Shampoo(parameters(dtype))
    in_float32 = Shampoo([p.detach().float().requires_grad_() for p in params_of(in_low_precision)])
    generator = torch.Generator().manual_seed(5)
    for param, float32_param in zip(
        params_of(in_low_precision), params_of(in_float32), strict=True
    ):
        param.grad = torch.randn(param.shape, generator=generator).to(dtype)
        float32_param.grad = param.grad.float()
    in_low_precision.step()
    in_float32.step()
    for param, float32_param in zip(
        params_of(in_low_precision), params_of(in_float32), strict=True
    ):
        assert torch.equal(param, float32_param.to(dtype))


def test_parameters_of_any_dtype_may_have_float32_states() -> None:
    text = spec(
        'require(ndim(p) == 2, "{shape}")',
        "L = L + g @ transpose(g)",
        "p = p - lr * inverse_root(L, 4, 0.1) @ g",
        states='L=state("left", shape=("rows", "rows"), dtype="float32")',
        hypers=LR,
    )
    cls: Any = optgen.load(Spec("Made", text, "made.py", 1))
    params = [*parameters(torch.bfloat16, ((3, 2),)), *parameters(torch.float64, ((3, 2),))]
    optimizer = cls(params)
    for param in params:
        param.grad = torch.linspace(-1, 2, 6).reshape(3, 2).to(param.dtype)
    optimizer.step()
    for param in params:
        assert optimizer.state[param]["left"].dtype == torch.float32
    torch.testing.assert_close(params[0].double(), params[1], rtol=0.01, atol=0.01)


def test_steps_with_groups_and_a_closure_lower_the_loss() -> None:
    params = parameters()
    optimizer = Shampoo([{"params": params[:2], "lr": 0.5}, {"params": params[2:]}], lr=0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = torch.stack([(p**2).sum() for p in params]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    loss_before = closure()
    for _ in range(5):
        optimizer.step(closure)
    assert closure() < loss_before
