"""Test reductions of each matrix of a parameter, in every lowering, against the oracle."""

from __future__ import annotations

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from lowerings.oracle_steps import steps_beside_the_oracle
from spec_texts import LR, read, spec
from torch.nn import Parameter

import optgen
from optgen import use_lowering
from optgen.ir.ops import WHOLE_REDUCTIONS
from optgen.passes.plan_rule import plan
from optgen.spec import Spec

MATRIX = 'require(factored(p), "{shape}")'
SHAPES = ((37, 131), (5, 6, 19), (2, 3, 4, 5), (3, 1, 1), (3, 4, 1))
STATES = 'm=state("exp_avg"), r=state("rows", shape="row")'
RULES = {
    "steps of length one": ('p = p - lr * g / (norm(g, over="matrix") + 1e-8)',),
    "all words": (
        'm = 0.5 * m + g * rms(g, over="matrix") + max_abs(p, over="matrix")',
        'r = lerp(r, row_mean(g**2), 0.25) - mean(r, over="matrix")',
        'u = m / (1 + norm(r, over="matrix")) + sum(col_mean(g), over="matrix")',
        'p = p - lr * u / (1 + rms(u, over="matrix")) / (1 + norm(u))',
    ),
    "beside products": (
        "m = 0.5 * m + 0.25 * g",
        'm = m + g @ transpose(g) @ g / (1 + norm(g @ transpose(g), over="matrix"))',
        'r = r / 2 + diag(g @ transpose(g)) / (1 + max_abs(m, over="matrix"))',
        'u = m * (1 + mean(g @ transpose(g), over="matrix")) / (1 + rms(m, over="matrix"))',
        'p = p - lr * r * u / (1 + sum(u * g, over="matrix") ** 2) / (1 + abs(r))',
        "p = p - lr * (0.5 * m + g * p)",
    ),
}
DIGITS = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2}


def spec_of(rule: str) -> Spec:
    states = STATES if len(RULES[rule]) > 1 else ""
    return Spec("Made", spec(MATRIX, *RULES[rule], states=states), "made.py", 1)


def assert_right(
    rule: str, lowering: str, dtype: torch.dtype, shape: tuple[int, ...], steps: int = 3
) -> None:
    """Compare parameters and states of each step with the oracle's."""
    for step in steps_beside_the_oracle(spec_of(rule), lowering, dtype, steps, shape=shape):
        pairs = [(step.param, step.expected_param)]
        pairs += [(value, step.expected_state[key]) for key, value in step.state.items()]
        for found, expected in pairs:
            expected = torch.as_tensor(expected, dtype=torch.float64)
            bound = DIGITS[dtype] * expected.abs().max().clamp(1e-3)
            assert (found.double() - expected).abs().max() <= bound


@outside_interpreter
@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DIGITS, ids=str)
@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu", "differentiable"])
@pytest.mark.parametrize("rule", RULES)
def test_a_step_is_that_of_the_oracle(
    rule: str, lowering: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    assert_right(rule, lowering, dtype, shape)


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@inside_interpreter
@pytest.mark.parametrize("dtype", DIGITS, ids=str)
@pytest.mark.parametrize("rule", ["steps of length one", "all words"])
def test_kernels_step_as_the_oracle(rule: str, dtype: torch.dtype) -> None:
    assert_right(rule, "fused_triton", dtype, (3, 5, 19), 2)


@outside_interpreter
@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_a_batch_steps_as_its_matrices(lowering: str) -> None:
    """A batch takes the steps of as many parameters; `over` all elements, it would not."""
    batch = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(1))
    cls = optgen.load(spec_of("steps of length one"))
    whole, *alone = (Parameter(x.clone()) for x in (batch, *batch))
    for params in ([whole], alone):
        optimizer = cls(params)
        for param in params:
            param.grad = 3 * param.detach()
        with use_lowering(lowering):
            optimizer.step()
    torch.testing.assert_close(whole.detach(), torch.stack([x.detach() for x in alone]))


@outside_interpreter
@pytest.mark.parametrize("word", WHOLE_REDUCTIONS)
def test_a_matrix_costs_as_many_sweeps_as_a_parameter(word: str) -> None:
    """The sums of rows end in the same finish as a sum of all elements."""
    rules = (
        read(spec(MATRIX, f"p = p - lr * g * {call}", hypers=LR))
        for call in (f"{word}(g)", f'{word}(g, over="matrix")')
    )
    assert len({len(plan(rule, {"factored": True}).sweeps) for rule in rules}) == 1
