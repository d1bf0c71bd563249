"""Test that rules which torch lacks stay finite in 16 bits, whatever the size of the gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import Parameter

from optgen import optim, use_lowering
from optgen.optim._published import PUBLISHED

NEED_INPUTS = {"AdaHessian"}
RULES = sorted(set(PUBLISHED.values()) - NEED_INPUTS)
GROW_WITHOUT_GRADIENTS = {"AdamS"}
"""Weights decay at a rate of 1 / eps if all gradients are 0, by the paper: float16 overflows."""


def stepped(name: str, dtype: torch.dtype, lowering: str, scale: float) -> tuple[Parameter, Any]:
    """Return a parameter after six steps, and its optimizer."""
    generator = torch.Generator().manual_seed(0)
    param = Parameter(torch.randn(16, 8, generator=generator).to(dtype))
    optimizer = getattr(optim, name)([param])
    with use_lowering(lowering):
        for _ in range(6):
            param.grad = (torch.randn(16, 8, generator=generator) * scale).to(dtype)
            optimizer.step()
    return param, optimizer


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", RULES)
def test_steps_are_finite(name: str, dtype: torch.dtype, lowering: str) -> None:
    scales = (0.0, 1e-7, 1e-4, 1e-2, 1.0, 30.0)
    for scale in scales[1:] if name in GROW_WITHOUT_GRADIENTS else scales:
        param, optimizer = stepped(name, dtype, lowering, scale)
        states = [v for v in optimizer.state[param].values() if isinstance(v, torch.Tensor)]
        assert all(tensor.isfinite().all() for tensor in (param, *states)), scale


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
@pytest.mark.parametrize("name", ["AdamC", "AdEMAMix", "MARS", "StableAdamW"])
def test_small_gradients_in_float16_train_as_in_the_kernel(name: str, lowering: str) -> None:
    """A larger eps would be finite too, but the steps would have another length."""
    param, _ = stepped(name, torch.float16, lowering, 1e-4)
    fused, _ = stepped(name, torch.float16, "fused_cpu", 1e-4)
    torch.testing.assert_close(param, fused, rtol=2e-3, atol=2e-3)
