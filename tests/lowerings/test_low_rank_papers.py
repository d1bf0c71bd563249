"""Test rules with thin matrices against steps that are written from their authors' code."""

from __future__ import annotations

from typing import Any

import pytest
from spec_files import optimizer_class, spec_file

from optgen.ir.evaluate import evaluate
from optgen.spec.read_spec import read_spec
from optgen.verification.case import Case
from optgen.verification.compare_with_reference import max_difference, run_case, trajectory
from optgen.verification.references.low_rank import CASES


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_steps_equal_the_authors_code(case: Case, lowering: str) -> None:
    assert run_case(case, optimizer_class(case.name), lowering).max_error <= case.bound


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_oracle_equals_the_authors_code(case: Case) -> None:
    (algorithm,) = read_spec(spec_file(case.name))
    hypers = {h.name: h.default for h in algorithm.hypers} | dict(case.options)
    params, states = case.problem.initial_params(), [dict[str, Any]() for _ in case.shapes]
    for step, expected in enumerate(trajectory(case).params, 1):
        for index, grad in enumerate(case.problem.gradients(params, step)):
            arguments = hypers, params[index], grad, states[index]
            params[index], states[index] = evaluate(algorithm, *arguments, index=index)
        assert max_difference(params, expected) <= case.bound
