"""Test published rules against steps that are written from their papers, in every lowering."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from interpreter import INTERPRETED, inside_interpreter, outside_interpreter, run_inside
from lowerings.papers import PAPERS
from spec_files import optimizer_class

from optgen.verification.case import Case, RuleReference
from optgen.verification.compare_with_reference import CaseRun, run_case
from optgen.verification.references import moments
from optgen.verification.references.learning_rate_free import SCHEDULE_FREE

CATALOGUE = [*moments.CASES, *SCHEDULE_FREE]
LOWERINGS = ("forloop", "foreach", "fused_cpu")
CASES_AND_LOWERINGS = [(case, lowering) for case in PAPERS for lowering in LOWERINGS]
CASES_AND_LOWERINGS += [(case, "fused_cpu") for case in CATALOGUE]
"""`make verify` follows the catalogue in the other lowerings, but compares no states."""
SHORTENED_CASES = (
    [replace(case, steps=8) for case in (*PAPERS, *CATALOGUE[::3])] if INTERPRETED else []
)
SYMBOLS_BY_KEY = {
    "novograd": {"exp_avg": "m", "exp_avg_sq": "v"},
    "stable_spam": {"exp_avg": "m", "m_norm_t": "norm", "v_norm_t": "norm_sq", "m_max_t": "max"},
    "amos": {"exp_avg_sq": "v", "decay": "d", "exp_avg": "m"},
    "adahessian": {"exp_avg": "exp_avg", "exp_hessian_diag_sq": "exp_avg_sq"},
    "adam_mini": {"m": "m", "vmean": "r", "v": "v"},
    "adam_h": {"exp_avg": "m", "exp_avg_sq": "v"},
    "madgrad": {"grad_sum_sq": "v", "s": "s", "x0": "x0"},
    "sm3": {"row_max": "r", "col_max": "c", "sum": "v", "momentum_buffer": "m"},
}
"""For each state's key, the name of the same value in the step from the paper.

If the paper's step has no such value for a parameter, the optimizer must have no such state. In
rules that are not listed, the values are named like the keys.
"""


@pytest.mark.one_case_in(4)
@outside_interpreter
@pytest.mark.parametrize(("case", "lowering"), CASES_AND_LOWERINGS, ids=str)
def test_steps_equal_the_papers(case: Case, lowering: str) -> None:
    follow_the_paper(case, lowering)


@inside_interpreter
@pytest.mark.parametrize("case", SHORTENED_CASES, ids=str)
def test_kernels_equal_the_papers(case: Case) -> None:
    follow_the_paper(case, "fused_triton")


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


def follow_the_paper(case: Case, lowering: str) -> None:
    """Check the steps of a lowering and the final states."""
    run = run_case(case, optimizer_class(case.name), lowering)

    assert run.max_error <= case.bound
    check_states(case.name, run)


def check_states(name: str, run: CaseRun) -> None:
    """Check the states of each parameter against the values of the step from the paper."""
    assert isinstance(run.reference, RuleReference)
    for param, values in zip(run.params, run.reference.states, strict=True):
        state = run.optimizer.state[param]
        same_names = {key: key for key in state if key != "step"}
        for key, symbol in SYMBOLS_BY_KEY.get(name, same_names).items():
            expected = values.get(symbol)
            if expected is not None:
                expected = torch.as_tensor(expected, dtype=torch.float64)
            torch.testing.assert_close(state.get(key), expected, rtol=1e-10, atol=1e-14)
