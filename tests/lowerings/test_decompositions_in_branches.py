"""Test decompositions under an `if` on a counter, in every lowering."""

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

RULE = '''from optgen.spec import *

@optimizer()
def Whitened(
    p, g, t, /,
    L=state("gram", shape=("rows", "rows"), init=0.5),
    U=state("basis", shape=("rows", "rows")),
    d=state("values", shape="row", init=1),
    k=state("count", shape="scalar"),
    *, lr=hyper(0.1), every=hyper(2, ge=1, whole=True),
):
    """Made up."""
    require(ndim(p) >= 2, "{{shape}}")
    L = lerp(L, g @ transpose(g), 0.5)
    k = k + 1
    if {condition}:
        U = eigenvectors(L)
        d = maximum(eigenvalues(L), 0) + 1
        k = k - every
    g = U @ (transpose(U) @ g / d)
    p = p - lr * g
'''
CONDITIONS = ("t == 1 or k >= every", "t % every == 1")
SHAPES = ((3, 4), (2, 2, 5), (3, 4))


def assert_agreement(condition: str, lowering: str, **options: Any) -> None:
    """Compare five steps with the oracle; between two decompositions the old one is used."""
    spec = Spec("Whitened", RULE.format(condition=condition), "whitened.py", 1)
    (algorithm,) = read_spec(spec)
    hypers: dict[str, Any] = {h.name: h.default for h in algorithm.hypers}
    generator = torch.Generator().manual_seed(1)
    params = [torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES]
    expected: list[Any] = [(param.clone(), {}) for param in params]
    optimizer = optgen.load(spec)(params, **options)
    for _ in range(5):
        for index, param in enumerate(params):
            param.grad = torch.randn(param.shape, generator=generator, dtype=torch.float64)
            old, state = expected[index]
            expected[index] = evaluate(algorithm, hypers, old, param.grad, state)
        with use_lowering(lowering):
            optimizer.step()
    for param, (value, state) in zip(params, expected, strict=True):
        torch.testing.assert_close(param, value, rtol=1e-9, atol=1e-9)
        assert float(optimizer.state[param]["count"]) == float(state["count"])


@outside_interpreter
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_cpu_lowerings_decompose_when_the_counter_says(lowering: str, condition: str) -> None:
    assert_agreement(condition, lowering)


@outside_interpreter
@pytest.mark.parametrize("condition", CONDITIONS)
def test_steps_that_autograd_follows_decompose_when_the_counter_says(condition: str) -> None:
    assert_agreement(condition, "forloop", differentiable=True)


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@inside_interpreter
@pytest.mark.parametrize("condition", CONDITIONS)
def test_triton_decomposes_when_the_counter_says(condition: str) -> None:
    assert_agreement(condition, "fused_triton")
