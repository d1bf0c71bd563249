"""Test numbers and rows that are read after a matrix op, in every lowering."""

from __future__ import annotations

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside

import optgen
from optgen import use_lowering
from optgen.ir.evaluate import evaluate
from optgen.spec import Spec
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
CALL = "o = orthogonalize(m, k, 4, 1e-7)"
ROWS = "r = lerp(r, row_mean(g**2), 0.5)"
READ_AFTER = {
    "numbers": "p = p - lr * o * norm(p) * max_abs(g) / rms(m) / (1 + rms(o))",
    "rows": "p = p - lr * norm(g) * o / (1 + sqrt(r))",
    "signs": "p = p - lr * (o + g / norm(g)) * (1 + mean(g) / max_abs(g))",
    "the state itself": "p = p - lr * (o + m)",
}
RULES = {name: (CALL, ROWS, rule) for name, rule in READ_AFTER.items()} | {
    "a number before and after": (
        ROWS,
        "n = norm(g) + rms(m)",
        "p = p - lr * n * orthogonalize(m * n + g, k, 4, 1e-7) / (1 + r)",
    ),
    "rows before and after": (
        ROWS,
        "p = p - lr * orthogonalize(m / (1 + r), k, 4, 1e-7) * r",
    ),
    "a scaled gradient before and after": (
        "g = g / (1 + max_abs(g))",
        ROWS,
        "p = p - lr * orthogonalize(g + m, k, 4, 1e-7) * (1 + g)",
    ),
    "old rows after an op that reads new rows": (
        "n = r * g",
        ROWS,
        "o = orthogonalize(lerp(g, r, p), k, 4, 1e-7)",
        "p = p - lr * (o + n)",
    ),
    "computed numbers of an op": (
        ROWS,
        "n = 2 * floor(lr * 20)",
        "o = orthogonalize(m, k, n, lr * 1e-6, dtype='parameter')",
        "p = p - lr * (o + orthogonalize(m / (2 + r), k, 4, lr / 2, divisor='spectral'))",
    ),
    "numbers and rows before, between and after two ops": (
        "n = norm(g)",
        ROWS,
        "o = orthogonalize(m * n + g / (1 + r), k, 4, 1e-7)",
        "s = n * rms(o) + row_mean(o * m)",
        "p = p - lr * n * orthogonalize(o * s + g, k, 4, 1e-7) / (1 + abs(s))",
    ),
}


def spec_with(*lines: str) -> Spec:
    return Spec("Made", HEADER + "".join(f"    {line}\n" for line in lines), "made.py", 1)


def assert_agreement(lines: tuple[str, ...], lowering: str) -> None:
    """Compare three steps with the oracle, up to the error of the matrix op in bfloat16."""
    spec = spec_with(*lines)
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
@pytest.mark.parametrize("case", ["numbers", "rows", *list(RULES)[-6:]])
def test_triton_agrees_with_the_rule(case: str) -> None:
    assert_agreement(RULES[case], "fused_triton")


@outside_interpreter
def test_sweeps_surround_a_matrix_op_whose_rows_are_read_on_both_sides() -> None:
    optimizer = optgen.load(spec_with(*RULES["rows before and after"]))([torch.ones(3, 4)])
    rule = type(optimizer).rule
    assert rule.why_uncut == "values of sums are read before and after `orthogonalize`"
    assert rule.fused_share == 1.0
    assert not rule.why_no_sweeps
