"""Test `zero_grad`: the fused C++ kernel sets gradients to zero in the sweep that reads them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from optgen import compose, modifiers, optim, use_lowering
from optgen.runtime import take_step
from optgen.runtime.batch.gradients import zero_gradients

SHAPES = ((33, 17), (100,), (5, 3), (), (0, 4))
PARTS: dict[str, tuple[Any, ...]] = {
    "one sweep": (),
    "two sweeps": (modifiers.clip_tensor_norm(0.1),),
    "a reduction over all parameters": (modifiers.clip_norm(0.5),),
}
PARAM_AND_GRAD_DTYPES = {
    "float32": (torch.float32, torch.float32),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "bfloat16 gradients": (torch.float32, torch.bfloat16),
}


def zeroing_class(*parts: Any) -> Any:
    """Return AdamW with modifiers, the last of which is `zero_grad`."""
    return compose(optim.AdamW, *parts, modifiers.zero_grad)


def parameters(dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def with_transposed_strides(grad: Tensor) -> Tensor:
    return grad.t().contiguous().t() if grad.dim() == 2 else grad


@pytest.fixture
def counts_zeroed_after_the_kernel(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets, at each step, the number of gradients zeroed after the kernel."""
    counts: list[int] = []

    def count_and_zero(grads: list[Tensor]) -> None:
        counts.append(len(grads))
        zero_gradients(grads)

    monkeypatch.setattr(take_step, "zero_gradients", count_and_zero)
    return counts


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("dtypes", PARAM_AND_GRAD_DTYPES.values(), ids=PARAM_AND_GRAD_DTYPES)
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_the_kernel_writes_the_zeros(
    parts: tuple[Any, ...],
    dtypes: tuple[torch.dtype, torch.dtype],
    counts_zeroed_after_the_kernel: list[int],
) -> None:
    """Steps are first, cached, or gathered again, when gradients get other strides."""
    dtype, grad_dtype = dtypes
    plain_class: Any = compose(optim.AdamW, *parts) if parts else optim.AdamW
    params, expected = parameters(dtype), parameters(dtype)
    zeroing, plain = zeroing_class(*parts)(params), plain_class(expected)
    for step in range(4):
        for param, other, grad in zip(params, expected, parameters(dtype, step + 1), strict=True):
            param.grad_dtype = other.grad_dtype = grad_dtype
            other.grad = grad.to(grad_dtype)
            param.grad = (
                with_transposed_strides(other.grad.clone()) if step == 2 else other.grad.clone()
            )
        zeroing.step()
        plain.step()
        assert all(map(torch.equal, params, expected))
        assert not any(param.grad.any() for param in params if param.grad is not None)
    assert not any(counts_zeroed_after_the_kernel)


def test_gradients_of_a_skipped_step_are_zero() -> None:
    """Otherwise `backward` would add the next gradient to an infinity."""
    param = torch.ones(5, requires_grad=True)
    optimizer = zeroing_class()([param], fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for factor in (1.0, torch.inf, 1.0, torch.inf):  # before there is a cached step, and after
        before = param.detach().clone()
        scaler.scale((param * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(param, before) is (factor == torch.inf)
        assert param.grad is not None
        assert not param.grad.any()


def test_the_functional_form_zeroes_the_gradients_it_is_handed() -> None:
    param, grad = torch.ones(5), torch.ones(5)
    zeroing_class()([param]).step()  # builds nothing: there is no gradient
    optimizer = zeroing_class()([param])
    take_step.step(optimizer, [grad])
    assert not grad.any()
    assert not torch.equal(param, torch.ones(5))


def test_a_parameter_listed_twice_is_refused() -> None:
    """Its second update would read the zeros that the first update has written."""
    param = torch.ones(3, requires_grad=True)
    with pytest.warns(UserWarning, match="duplicate"):
        optimizer = zeroing_class()([param, param])
    param.grad = torch.ones(3)
    with pytest.raises(RuntimeError, match="list it once"):
        optimizer.step()
    assert torch.equal(param, torch.ones(3))
    assert torch.equal(param.grad, torch.ones(3))


@pytest.mark.parametrize("before", [0, 2], ids=["first step", "cached step"])
def test_a_shared_gradient_is_refused(before: int) -> None:
    """The second parameter would read the zeros that the first has written."""
    params = [torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)]
    optimizer = zeroing_class()(params)
    for _ in range(before):
        for param in params:
            param.grad = torch.ones(3)
        optimizer.step()
    start = [param.detach().clone() for param in params]
    params[0].grad = params[1].grad = torch.ones(3)
    with pytest.raises(RuntimeError, match="give each parameter a gradient of its own"):
        optimizer.step()
    assert all(map(torch.equal, params, start))
    assert torch.equal(params[0].grad, torch.ones(3))


@pytest.mark.parametrize("steps", [1, 3], ids=["first step", "cached step"])
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_a_step_advances_the_version_counters_of_gradients(
    parts: tuple[Any, ...], steps: int
) -> None:
    """A backward pass that saved the gradient must not read the zeros."""
    param = torch.ones(3, requires_grad=True)
    optimizer = zeroing_class(*parts)([param])
    for _ in range(steps):
        param.grad = torch.ones(3)
        loss = (torch.ones(3, requires_grad=True) * param.grad).sum()
        optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_gradients_with_a_conjugate_or_negative_bit_are_zeroed(lowering: str) -> None:
    conjugated = torch.ones(3, dtype=torch.complex64, requires_grad=True)
    negated = torch.ones(3, requires_grad=True)
    optimizer = zeroing_class()([conjugated, negated])
    conjugated.grad = torch.full((3,), 1 - 1j).conj()
    negated.grad = torch.full((3,), 1 - 1j).conj().imag
    with use_lowering(lowering):
        optimizer.step()
    assert not conjugated.grad.any()
    assert not negated.grad.any()


@pytest.mark.parametrize("lowering", ["forloop", "fused_cpu"])
def test_a_gradient_of_inference_mode_is_refused(lowering: str) -> None:
    """torch forbids writes to tensors of inference mode."""
    param = torch.ones(3, requires_grad=True)
    optimizer = zeroing_class()([param])
    with torch.inference_mode():
        grad = torch.ones(3)
    param.grad = grad
    with use_lowering(lowering), pytest.raises(RuntimeError, match="clone it outside"):
        optimizer.step()
    assert torch.equal(param, torch.ones(3))


def test_an_expanded_gradient_is_refused() -> None:
    """The elements share memory, so torch refuses to write to them."""
    param = torch.ones(3, 4, requires_grad=True)
    optimizer = zeroing_class()([param])
    param.grad = torch.ones(1).expand(3, 4)
    with pytest.raises(RuntimeError, match="single memory location"):
        optimizer.step()
    assert torch.equal(param, torch.ones(3, 4))
