"""Test that rules which draw random numbers step as the oracle does."""

from __future__ import annotations

import re

import pytest
import torch
from interpreter import INTERPRETED, outside_interpreter, run_inside
from lowerings.oracle_steps import steps_beside_the_oracle
from lowerings.random_numbers.rule_texts import (
    REDUCING,
    RULES_WITH_MATRICES,
    STATEMENTS_THAT_ONCE_FAILED,
    noise_spec,
)
from lowerings.random_numbers.stochastic_adamw import STOCHASTIC_ADAMW
from parity.cases import LOWERINGS

from optgen.ir.ops import RANDOM_OPS
from optgen.spec import Spec
from optgen.verification.compare_with_evaluator import iterate_exactly

FORMS = LOWERINGS if INTERPRETED else (*LOWERINGS, "differentiable", "capturable")
NARROW_DTYPES = (torch.bfloat16, torch.float16)


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("op", RANDOM_OPS)
def test_random_numbers_equal_those_of_the_oracle(op: str, dtype: torch.dtype, form: str) -> None:
    spec = noise_spec(op)
    for seed in (7, 2**24 + 3):
        for step in steps_beside_the_oracle(spec, form, dtype, num_steps=3, seed=seed):
            for key in "ab":
                assert torch.equal(step.state[key].double(), step.expected_state[key])
            torch.testing.assert_close(
                step.param.double(), step.expected_param, rtol=2 * torch.finfo(dtype).eps, atol=1e-6
            )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rule_that_draws_may_reduce(dtype: torch.dtype, form: str) -> None:
    spec, eps = Spec("Reducing", REDUCING, "reducing.py", 1), torch.finfo(dtype).eps
    for step in steps_beside_the_oracle(spec, form, dtype, num_steps=3):
        assert torch.equal(step.state["a"].double(), step.expected_state["a"])
        for key in ("m", "largest"):
            found, expected = step.state[key].double(), step.expected_state[key]
            torch.testing.assert_close(found, expected, rtol=2 * eps, atol=1e-6)
        equal_fraction = (step.param.double() == step.expected_param).double().mean()
        # Float32 results are rarely equal, but most are equal after the rounding to bfloat16.
        assert equal_fraction > (0.998 if dtype == torch.bfloat16 else 0.0)
        torch.testing.assert_close(
            step.param.double(), step.expected_param, rtol=2 * eps, atol=1e-6
        )


RULES_AND_DTYPES = [
    (name, dtype)
    for name in RULES_WITH_MATRICES
    # Fused kernels round the operand of a matrix op to the parameter's dtype.
    for dtype in (torch.float64, torch.float32 if name == "MatrixOp" else torch.bfloat16)
]
SKIP_REASONS = {
    ("WholeMatrices", "fused_triton"): "no Triton kernel has whole matrices",
    ("MatrixOp", "capturable"): "the exact matrix op reads a tensor on the host",
}


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "dtype"), RULES_AND_DTYPES, ids=str)
def test_a_rule_that_draws_may_have_rows_and_matrices(
    name: str, dtype: torch.dtype, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (name, form) in SKIP_REASONS:
        pytest.skip(SKIP_REASONS[name, form])
    monkeypatch.setattr("optgen.runtime.newton_schulz.iterate", iterate_exactly)
    spec, eps = Spec(name, RULES_WITH_MATRICES[name], f"{name}.py", 1), torch.finfo(dtype).eps
    for step in steps_beside_the_oracle(spec, form, dtype, num_steps=3, shape=(21, 34)):
        assert torch.equal(step.state["a"].float(), step.expected_state["a"].float())
        for key in step.state.keys() - {"a", "step", "stream"}:
            found, expected = step.state[key].double(), step.expected_state[key]
            torch.testing.assert_close(found, expected, rtol=4 * eps, atol=4 * eps)
        equal_fraction = (step.param.double() == step.expected_param).double().mean()
        if dtype == torch.bfloat16:
            assert equal_fraction > 0.99
        torch.testing.assert_close(
            step.param.double(), step.expected_param, rtol=2 * eps, atol=1e-6
        )


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", STATEMENTS_THAT_ONCE_FAILED)
def test_statements_that_once_failed_agree_with_the_oracle(
    case: str, dtype: torch.dtype, form: str
) -> None:
    body = "\n    ".join(STATEMENTS_THAT_ONCE_FAILED[case])
    states = [f'{name}=state("{name}")' for name in "am" if re.search(rf"\b{name}\b", body)]
    inputs = ", ".join(["p, g, t, /", *states, "*, lr=hyper(0.1)", "seed=hyper(3)"])
    if "seed" not in body:
        inputs = inputs.replace("t, /", "/").removesuffix(", seed=hyper(3)")
    text = (
        f'from optgen.spec import *\n\n@optimizer()\ndef Odd({inputs}):\n    """."""\n    {body}\n'
    )
    for step in steps_beside_the_oracle(Spec("Odd", text, "odd.py", 1), form, dtype, num_steps=2):
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(
            step.param.double(), step.expected_param, rtol=2 * eps, atol=1e-5
        )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", NARROW_DTYPES)
def test_stochastic_adamw_steps_as_its_rule(dtype: torch.dtype, form: str) -> None:
    for step in steps_beside_the_oracle(STOCHASTIC_ADAMW, form, dtype, lr=1e-3, seed=3):
        equal_fraction = (step.param.double() == step.expected_param).double().mean()
        # Float32 arithmetic moves a few values across a boundary of rounding.
        assert equal_fraction > 0.999
        assert step.param.dtype == dtype
