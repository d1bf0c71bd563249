"""Test the divisor and the dtype of `orthogonalize` through every lowering, without other ops."""

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
def Muon(p, g, t, /, m=state("exp_avg"), *, lr=hyper(0.1), k=hyper((1.5, -0.5, 0.0))):
    """Made up."""
    require(ndim(p) > 1, "{{shape}}")
    m = lerp(m, g, 0.1)
    {before}
    o = {call}
    p = p - lr * o * norm(m)
'''
CALLS = {
    "spectral": 'orthogonalize(m, k, 4, 1e-30, divisor="spectral", dtype="float16")',
    "scaled": 'orthogonalize(u, k, 4, divisor="none", dtype="parameter")',
    "float32": 'orthogonalize(m, k, 4, 1e-30, dtype="float32")',
    "in a whole rule": 'transpose(orthogonalize(transpose(m), k, 4, 1e-30, dtype="parameter"))',
}
SHAPES = ((4, 3), (3, 5), (2, 3, 4), (4, 3))
# Machine epsilons that the largest element of an update may be wrong by.
ALLOWED = 30


def error(call: str, dtype: torch.dtype, lowering: str) -> float:
    """Return the largest error of an update, in machine epsilons of the coarsest dtype in it."""
    before = "u = m / norm(m)" if "(u," in call else ""
    spec = Spec("Muon", RULE.format(call=call, before=before), "muon.py", 1)
    (algorithm,) = read_spec(spec)
    hypers: dict[str, Any] = {h.name: h.default for h in algorithm.hypers}
    generator = torch.Generator().manual_seed(3)
    params = [torch.zeros(s, dtype=dtype).requires_grad_() for s in SHAPES]
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator).to(dtype)
    with use_lowering(lowering):
        optgen.load(spec)(params).step()
    iterated = {"float16": torch.float16, "float32": torch.float32}
    named = next((d for name, d in iterated.items() if name in call), dtype)
    eps = max(torch.finfo(named).eps, torch.finfo(dtype).eps)
    worst = 0.0
    for param in params:
        assert param.grad is not None
        zeros = torch.zeros(param.shape, dtype=torch.float64)
        exact, _ = evaluate(algorithm, hypers, zeros, param.grad, {}, storage_dtype=dtype)
        worst = max(
            worst, float((param.detach().double() - exact).abs().max() / exact.abs().max() / eps)
        )
    return worst


DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@outside_interpreter
@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_cpu_lowerings_iterate_as_the_options_say(
    call: str, dtype: torch.dtype, lowering: str
) -> None:
    assert error(call, dtype, lowering) <= ALLOWED


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@inside_interpreter
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_triton_iterates_as_the_options_say(call: str, dtype: torch.dtype) -> None:
    assert error(call, dtype, "fused_triton") <= ALLOWED
