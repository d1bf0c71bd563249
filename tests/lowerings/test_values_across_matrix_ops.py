"""Test numbers and rows that are read after a matrix op, in every lowering."""

from __future__ import annotations

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside

import optgen
from optgen import use_lowering
from optgen.ir.evaluate import evaluate
from optgen.spec import Spec
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec

HEADER = '''from optgen.spec import *

@optimizer()
def Made(
    p, g, /, m=state("exp_avg"), r=state("rows", shape="row"),
    *, lr=hyper(0.1), k=hyper((1.5, -0.5, 0.0)),
):
    """Made up."""
    require(ndim(p) == 2, "{shape}")
    m = m / 2 + g / norm(g)
'''
RULES = {
    "numbers": "p = p - lr * o * norm(p) * max_abs(g) / rms(m) / (1 + rms(o))",
    "rows": "p = p - lr * norm(g) * o / (1 + sqrt(r))",
    "signs": "p = p - lr * (o + g / norm(g)) * (1 + mean(g) / max_abs(g))",
    "the state itself": "p = p - lr * (o + m)",
}


def spec_with(*lines: str) -> Spec:
    return Spec("Made", HEADER + "".join(f"    {line}\n" for line in lines), "made.py", 1)


def assert_agreement(rule: str, lowering: str) -> None:
    """Compare three steps with the oracle, up to the error of the matrix op in bfloat16."""
    call = "o = orthogonalize(m, k, 4, 1e-7)"
    spec = spec_with(call, "r = lerp(r, row_mean(g**2), 0.5)", rule)
    (algorithm,) = read_spec(spec)
    hypers = {h.name: h.default for h in algorithm.hypers}
    generator = torch.Generator().manual_seed(3)
    shapes = ((4, 3), (3, 5), (4, 3))
    params = [torch.randn(s, generator=generator).requires_grad_() for s in shapes]
    optimizer = optgen.load(spec)(params, maximize=True)
    states: list[dict[str, object]] = [{} for _ in shapes]
    for _ in range(3):
        expected = []
        for index, param in enumerate(params):
            param.grad = torch.randn(param.shape, generator=generator)
            old = param.detach().double()
            new, states[index] = evaluate(
                algorithm, hypers, old, -param.grad.double(), states[index]
            )
            expected.append((old, new))
        with use_lowering(lowering):
            optimizer.step()
        for param, (old, new) in zip(params, expected, strict=True):
            change, expected_change = param.detach().double() - old, new - old
            assert (change - expected_change).norm() < 0.02 * expected_change.norm()


@pytest.mark.one_case_in(2)
@outside_interpreter
@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("case", RULES)
def test_cpu_lowerings_agree_with_the_rule(case: str, lowering: str) -> None:
    assert_agreement(RULES[case], lowering)


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@inside_interpreter
@pytest.mark.parametrize("case", ["numbers", "rows"])
def test_triton_agrees_with_the_rule(case: str) -> None:
    assert_agreement(RULES[case], "fused_triton")


@outside_interpreter
def test_rows_read_before_and_after_a_matrix_op_are_an_error() -> None:
    rows = "r = lerp(r, row_mean(g**2), 0.5)"
    with pytest.raises(SpecError, match="read both before and after `orthogonalize`") as caught:
        optgen.load(spec_with(rows, "p = p - lr * orthogonalize(m / (1 + r), k, 4, 1e-7) * r"))
    assert f"{rows}\n    " in str(caught.value)
    assert "hint: numbers, rows and columns are not kept across `orthogonalize`" in str(
        caught.value
    )
