"""Test `zero_grad`: the fused C++ kernel leaves gradients at zero in its own sweep."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from optgen import compose, modifiers, optim, use_lowering
from optgen.runtime import dispatch
from optgen.runtime.batch.gradients import zero_gradients

SHAPES = ((33, 17), (100,), (5, 3), (), (0, 4))
PARTS: dict[str, tuple[Any, ...]] = {
    "one sweep": (),
    "two sweeps": (modifiers.clip_tensor_norm(0.1),),
    "waits for all parameters": (modifiers.clip_norm(0.5),),
}
DTYPES = {
    "float32": (torch.float32, torch.float32),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "bfloat16 gradients": (torch.float32, torch.bfloat16),
}


def pair(parts: tuple[Any, ...], **options: Any) -> tuple[Any, Any]:
    """Return classes with and without `zero_grad`."""
    plain = compose(optim.AdamW, *parts) if parts else optim.AdamW
    return compose(optim.AdamW, *parts, modifiers.zero_grad), plain


def parameters(dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def strided(grad: Tensor) -> Tensor:
    return grad.t().contiguous().t() if grad.dim() == 2 else grad


@pytest.fixture
def zeroed_later(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of gradients that each call after a kernel zeroes."""
    counts: list[int] = []

    def count_and_zero(grads: list[Tensor]) -> None:
        counts.append(len(grads))
        zero_gradients(grads)

    monkeypatch.setattr(dispatch, "zero_gradients", count_and_zero)
    return counts


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtypes", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_the_kernel_writes_the_zeros(
    parts: tuple[Any, ...], dtypes: tuple[torch.dtype, torch.dtype], zeroed_later: list[int]
) -> None:
    """Take a first, a cached and a gathered step. A gradient of another layout is copied."""
    dtype, grad_dtype = dtypes
    zeroing, plain = pair(parts)
    params, expected = parameters(dtype), parameters(dtype)
    ours, theirs = zeroing(params), plain(expected)
    for step in range(4):
        for param, other, grad in zip(params, expected, parameters(dtype, step + 1), strict=True):
            param.grad_dtype = other.grad_dtype = grad_dtype
            other.grad = grad.to(grad_dtype)
            param.grad = strided(other.grad.clone()) if step == 2 else other.grad.clone()
        ours.step()
        theirs.step()
        assert all(map(torch.equal, params, expected))
        assert not any(param.grad.any() for param in params if param.grad is not None)
    assert not any(zeroed_later)


def test_gradients_of_a_skipped_step_are_zero() -> None:
    """An infinity that stayed would be added to the next gradient."""
    param = torch.ones(5, requires_grad=True)
    ours = pair(())[0]([param], fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for factor in (1.0, torch.inf, 1.0, torch.inf):  # before there is a cached step, and after
        before = param.detach().clone()
        scaler.scale((param * factor).sum()).backward()
        scaler.step(ours)
        scaler.update()
        assert torch.equal(param, before) is (factor == torch.inf)
        assert param.grad is not None
        assert not param.grad.any()


def test_the_functional_form_zeroes_the_gradients_it_is_handed() -> None:
    param, grad = torch.ones(5), torch.ones(5)
    pair(())[0]([param]).step()  # builds nothing: there is no gradient
    ours = pair(())[0]([param])
    dispatch.step(ours, [grad])
    assert not grad.any()
    assert not torch.equal(param, torch.ones(5))


def test_a_parameter_listed_twice_is_refused() -> None:
    """Its second update would see the zeros that the first has left."""
    param = torch.ones(3, requires_grad=True)
    with pytest.warns(UserWarning, match="duplicate"):
        ours = pair(())[0]([param, param])
    param.grad = torch.ones(3)
    with pytest.raises(RuntimeError, match="list it once"):
        ours.step()
    assert torch.equal(param, torch.ones(3))
    assert torch.equal(param.grad, torch.ones(3))


@pytest.mark.parametrize("before", [0, 2], ids=["first step", "cached step"])
def test_a_shared_gradient_is_refused(before: int) -> None:
    """The second parameter would see the zeros that the first has left."""
    params = [torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)]
    ours = pair(())[0](params)
    for _ in range(before):
        for param in params:
            param.grad = torch.ones(3)
        ours.step()
    start = [param.detach().clone() for param in params]
    params[0].grad = params[1].grad = torch.ones(3)
    with pytest.raises(RuntimeError, match="give each parameter a gradient of its own"):
        ours.step()
    assert all(map(torch.equal, params, start))
    assert torch.equal(params[0].grad, torch.ones(3))


@pytest.mark.parametrize("steps", [1, 3], ids=["first step", "cached step"])
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_the_versions_of_gradients_advance(parts: tuple[Any, ...], steps: int) -> None:
    """A gradient saved for backward must not be read after the step has zeroed it."""
    param = torch.ones(3, requires_grad=True)
    ours = pair(parts)[0]([param])
    for _ in range(steps):
        param.grad = torch.ones(3)
        loss = (torch.ones(3, requires_grad=True) * param.grad).sum()
        ours.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_gradients_with_a_conjugate_or_negative_bit_are_zeroed(lowering: str) -> None:
    values = torch.ones(3, dtype=torch.complex64, requires_grad=True)
    negated = torch.ones(3, requires_grad=True)
    ours = pair(())[0]([values, negated])
    values.grad = torch.full((3,), 1 - 1j).conj()
    negated.grad = torch.full((3,), 1 - 1j).conj().imag
    with use_lowering(lowering):
        ours.step()
    assert not values.grad.any()
    assert not negated.grad.any()


@pytest.mark.parametrize("lowering", ["forloop", "fused_cpu"])
def test_a_gradient_of_inference_mode_is_refused(lowering: str) -> None:
    """torch forbids writes to tensors of inference mode."""
    param = torch.ones(3, requires_grad=True)
    ours = pair(())[0]([param])
    with torch.inference_mode():
        grad = torch.ones(3)
    param.grad = grad
    with use_lowering(lowering), pytest.raises(RuntimeError, match="clone it outside"):
        ours.step()
    assert torch.equal(param, torch.ones(3))


def test_an_expanded_gradient_is_refused() -> None:
    """The elements share memory, so torch refuses to write to them."""
    param = torch.ones(3, 4, requires_grad=True)
    ours = pair(())[0]([param])
    param.grad = torch.ones(1).expand(3, 4)
    with pytest.raises(RuntimeError, match="single memory location"):
        ours.step()
    assert torch.equal(param, torch.ones(3, 4))
