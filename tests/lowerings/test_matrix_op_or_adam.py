"""Test a rule with a matrix op for matrices and Adam for the rest, through every lowering."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside

import optgen
from optgen import use_lowering
from optgen.ir.evaluate import evaluate
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

HYBRID = '''from optgen.spec import *

@optimizer()
def Hybrid(
    p, g, t, /, m=state("exp_avg"), {states}
    *, lr=hyper(0.1), k=hyper((1.5, -0.5, 0.0)),
):
    """Made up."""
    m = lerp(m, g, 0.1)
    if factored(p):
        o = orthogonalize(m, k, 4, 1e-7)
        p = p - lr * o * norm(p)
    else:
        v = lerp(v, g**2, 0.01)
        p = p - lr * m / (sqrt(v) + 1e-8)
'''
DECLARATIONS_OF_V = {
    "v for vectors only": 'v=state("exp_avg_sq", when="not factored"),',
    "v for all parameters": 'v=state("exp_avg_sq"),',
}
SHAPES = ((4, 3), (3,), (3, 5), (), (2, 3, 4), (4, 3), (7,))


def assert_agreement(variant: str, lowering: str) -> None:
    """Compare three steps with the oracle, up to the error of the matrix op in bfloat16."""
    text = HYBRID.replace("{states}", DECLARATIONS_OF_V[variant])
    spec = Spec("Hybrid", text, "hybrid.py", 1)
    (algorithm,) = read_spec(spec)
    hypers = {h.name: h.default for h in algorithm.hypers}
    generator = torch.Generator().manual_seed(3)
    params = [torch.randn(s, generator=generator).requires_grad_() for s in SHAPES]
    optimizer = optgen.load(spec)(params)
    states_by_param: list[dict[str, Any]] = [{} for _ in SHAPES]
    for _ in range(3):
        expected = []
        for index, param in enumerate(params):
            param.grad = torch.randn(param.shape, generator=generator)
            old = param.detach().double()
            new, states_by_param[index] = evaluate(
                algorithm, hypers, old, param.grad.double(), states_by_param[index]
            )
            expected.append((old, new))
        with use_lowering(lowering):
            optimizer.step()
        for param, (old, new) in zip(params, expected, strict=True):
            bound = 0.02 if param.ndim > 1 else 1e-5
            change, expected_change = param.detach().double() - old, new - old
            assert (change - expected_change).norm() < bound * expected_change.norm()


@outside_interpreter
@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("variant", DECLARATIONS_OF_V)
def test_cpu_lowerings_agree_with_the_rule(variant: str, lowering: str) -> None:
    assert_agreement(variant, lowering)


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@inside_interpreter
def test_triton_agrees_with_the_rule() -> None:
    assert_agreement("v for vectors only", "fused_triton")
