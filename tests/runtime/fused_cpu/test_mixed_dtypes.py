"""Test fused C++ steps of parameters, gradients and states of several dtypes."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from spec_texts import spec
from torch import Tensor
from torch.nn import Parameter

import optgen
from optgen import compose, modifiers, optim, use_lowering

SIZES = (1, 31, 32, 33, 3000)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
UNEQUAL_DTYPES = [pair for pair in product(DTYPES, DTYPES) if len({*pair}) == 2]


def parameters(dtype: torch.dtype, grad_dtype: torch.dtype) -> list[Parameter]:
    """Return parameters with gradients; calls with equal dtypes return equal numbers."""
    generator = torch.Generator().manual_seed(0)
    params = [Parameter(torch.randn(n, generator=generator).to(dtype)) for n in SIZES]
    for param in params:
        if dtype != grad_dtype:
            param.grad_dtype = None
        param.grad = torch.randn(param.shape, generator=generator).to(grad_dtype)
    return params


def float64_copies(params: list[Parameter]) -> list[Tensor]:
    """Return copies in float64, with gradients."""
    copies = [param.detach().double().requires_grad_() for param in params]
    for copy, param in zip(copies, params, strict=True):
        assert param.grad is not None
        copy.grad = param.grad.double()
    return copies


@pytest.mark.parametrize(("dtype", "state_dtype"), UNEQUAL_DTYPES)
def test_states_of_another_dtype_equal_those_of_the_for_loop(
    dtype: torch.dtype, state_dtype: torch.dtype
) -> None:
    name = str(state_dtype).removeprefix("torch.")
    cls = compose(optim.SGD, modifiers.state_dtype(name))
    fused_params, plain_params = (parameters(dtype, dtype) for _ in range(2))
    optimizers = [cls(params, lr=0.125, momentum=0.5) for params in (fused_params, plain_params)]
    for optimizer, lowering in zip(optimizers, ("fused_cpu", "forloop"), strict=True):
        with use_lowering(lowering):
            for _ in range(3):
                optimizer.step()
    for fused, plain in zip(fused_params, plain_params, strict=True):
        buffers = [
            o.state[p]["momentum_buffer"] for o, p in zip(optimizers, (fused, plain), strict=True)
        ]
        assert buffers[0].dtype == state_dtype
        assert torch.equal(fused, plain)
        assert torch.equal(*buffers)


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_float32_masters_follow_torch_in_float64(dtype: torch.dtype) -> None:
    """Float32 holds gradients of 16 bits exactly, so masters differ only by their own rounding."""
    params = parameters(dtype, dtype)
    expected = float64_copies(params)
    cls = compose(optim.AdamW, modifiers.master, modifiers.state_dtype("float32"))
    ours, theirs = cls(params), torch.optim.AdamW(expected)
    with use_lowering("fused_cpu"):
        for _ in range(4):
            ours.step()
            theirs.step()
    for param, expected_param in zip(params, expected, strict=True):
        master = ours.state[param]["master"]
        torch.testing.assert_close(master.double(), expected_param.detach(), rtol=1e-6, atol=1e-6)
        assert torch.equal(param, master.to(dtype))


def test_float32_parameters_with_16_bit_gradients_follow_torch() -> None:
    params = parameters(torch.float32, torch.bfloat16)
    expected = float64_copies(params)
    ours, theirs = optim.AdamW(params), torch.optim.AdamW(expected)
    with use_lowering("fused_cpu"):
        for _ in range(4):
            ours.step()
            theirs.step()
    for param, expected_param in zip(params, expected, strict=True):
        torch.testing.assert_close(param.double(), expected_param.detach(), rtol=1e-6, atol=1e-6)


def test_an_element_has_the_same_bits_at_any_position() -> None:
    """Elements beyond the last whole vector get the same bits as those within a vector."""
    whole = Parameter(torch.randn(77, dtype=torch.bfloat16))
    whole.grad = torch.randn_like(whole)
    parts = [Parameter(part.clone()) for part in whole.detach().split([5, 40, 32])]
    for part, grad in zip(parts, whole.grad.split([5, 40, 32]), strict=True):
        part.grad = grad.clone()
    cls = compose(optim.AdamW, modifiers.master, modifiers.state_dtype("float32"))
    optimizer_of_whole, optimizer_of_parts = cls([whole]), cls(parts)
    with use_lowering("fused_cpu"):
        for _ in range(3):
            optimizer_of_whole.step()
            optimizer_of_parts.step()
    joined = torch.cat([optimizer_of_parts.state[part]["master"] for part in parts])
    assert torch.equal(optimizer_of_whole.state[whole]["master"], joined)


def test_rounded_changes_nothing_for_a_float32_parameter(tmp_path: Path) -> None:
    path = tmp_path / "made.py"
    path.write_text(
        spec("m = g + 0.5 * m", "p = rounded(p - lr * g)", states='m=state("m", dtype="bfloat16")')
    )
    cls = optgen.load(path)
    params = parameters(torch.float32, torch.float32)
    expected = [param.detach() - 0.1 * param.grad for param in params if param.grad is not None]
    with use_lowering("fused_cpu"):
        cls(params).step()
    for param, expected_param in zip(params, expected, strict=True):
        torch.testing.assert_close(param.detach(), expected_param, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("dtype", "state_dtype"), UNEQUAL_DTYPES)
def test_roundings_and_random_numbers_equal_those_of_the_for_loop(
    dtype: torch.dtype, state_dtype: torch.dtype
) -> None:
    """Both lowerings round to the parameter's dtype, with equal random numbers for each element."""
    cls = compose(
        optim.SGD,
        modifiers.state_dtype(str(state_dtype).removeprefix("torch.")),
        modifiers.stochastic_rounding,
    )
    results = []
    for lowering in ("fused_cpu", "forloop"):
        params = parameters(dtype, dtype)
        optimizer = cls(params, lr=0.125, momentum=0.5, seed=3)
        with use_lowering(lowering):
            for _ in range(3):
                optimizer.step()
        results.append(torch.cat([param.detach().double() for param in params]))
    equal_share = (results[0] == results[1]).double().mean()
    assert equal_share > 0.99  # float32 errors move a few values across a boundary of rounding
    torch.testing.assert_close(*results, rtol=0.02, atol=0.02)
