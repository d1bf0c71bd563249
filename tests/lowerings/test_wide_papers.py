"""Test rules that share numbers between parameters against steps written from their papers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lowerings.papers import CLIPPED_LAMB
from spec_files import optimizer_class
from torch import Tensor
from torch.optim import Optimizer

from optgen.verification.case import Case, SharedRuleReference
from optgen.verification.compare_with_reference import CaseRun, run_case
from optgen.verification.references.learning_rate_free import LEARNING_RATE_FREE

LOWERINGS = ("forloop", "foreach", "fused_cpu")
CASES = (*LEARNING_RATE_FREE, CLIPPED_LAMB)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_steps_equal_the_papers(case: Case, groups: int, lowering: str) -> None:
    def with_groups(params: list[Tensor], **options: Any) -> Optimizer:
        param_groups = [{"params": params[group::groups]} for group in range(groups)]
        optimizer: Optimizer = optimizer_class(case.name)(param_groups, **options)
        return optimizer

    run = run_case(case, with_groups, lowering)

    assert run.max_error <= case.bound
    check_states(run)


def check_states(run: CaseRun) -> None:
    """Check the states of parameters and groups against the values of the step from the paper."""
    optimizer: Any = run.optimizer
    assert isinstance(run.reference, SharedRuleReference)
    values = run.reference.state
    for index, param in enumerate(run.params):
        for key in optimizer.state[param].keys() - {"step"}:
            found = optimizer.state[param][key]
            torch.testing.assert_close(found, values[key][index], rtol=1e-10, atol=1e-300)
    for group in optimizer.param_groups:
        for state in type(optimizer).rule.group_states:
            assert group[state.key].item() == pytest.approx(values[state.key], rel=1e-10)
