"""Define rules with extra inputs, and draw parameters, gradients and inputs for them."""

from __future__ import annotations

from typing import Any

import torch
from interpreter import INTERPRETED
from spec_files import spec_file
from torch import Tensor

import optgen
from optgen.spec import Spec

SOPHIA = optgen.load(spec_file("sophia"))
ADA_HESSIAN = optgen.load(spec_file("adahessian"))
LOWERINGS = ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu")
SHAPES = ((3, 4), (), (2, 3, 2), (1,))

TWO_INPUTS = '''from optgen.spec import *


@optimizer(paper="https://example.org")
def TwoInputs(
    p, g, t, a=given("first"), b=given("second"), /,
    m=state("m"), s=state("s", shape="scalar"), *, lr=hyper(0.1, ge=0), fa=flag(True),
):
    """Two inputs that may be absent, in branches, and sums."""
    x = g
    if given(a) and fa:
        x = x + a * rms(a)
        s = s + 1
    elif given(b):
        x = x - b
    if not given(b):
        m = 0.5 * m + x
    else:
        m = lerp(m, b * mean(b), 0.25) + x
    p = p - lr * m / (1 + s)
'''
ELEMENTWISE = (
    TWO_INPUTS.replace(" * rms(a)", "")
    .replace(" * mean(b)", "")
    .replace("TwoInputs", "Elementwise")
)


def parameters(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]


def gradient(point: Tensor, step: int) -> Tensor:
    return torch.cos(point.detach() * (step + 1))


def estimate(point: Tensor, step: int) -> Tensor:
    """Return a positive tensor that stands for an estimate of the Hessian's diagonal."""
    return torch.sin(point.detach() * (step + 1)).abs() + 0.1


def class_of(text: str) -> Any:
    """Return the class of the spec that has this text."""
    name = text.partition("def ")[2].partition("(")[0]
    return optgen.load(Spec(name, text, f"{name}.py", 1))


def check_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for tensor, expected_tensor in zip(found, expected, strict=True):
        torch.testing.assert_close(tensor.detach(), expected_tensor, rtol=1e-10, atol=1e-10)
