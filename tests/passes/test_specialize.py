"""Test that a rule with rows and columns is elementwise for 1 x 1 matrices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lowerings.rules import read
from plan_run import run_plan

from optgen.ir.evaluate import evaluate
from optgen.ir.kinds import Axes
from optgen.ir.print_ir import to_text
from optgen.passes.plan_rule import plan
from optgen.passes.prepare_rule import specialize_unit_matrices
from optgen.spec.read_spec import read_spec

(ADAFACTOR,) = read_spec(Path(__file__).parents[2] / "specs" / "adafactor.py")


@pytest.mark.parametrize("facts", [{"factored": True}, {"factored": False}])
def test_a_specialized_rule_has_no_row_or_column_values(facts: dict[str, bool]) -> None:
    planned = plan(specialize_unit_matrices(ADAFACTOR), facts)

    axes = {kind.axes for kind in planned.kinds.values()}
    assert axes <= {Axes.NONE, Axes.TENSOR}
    assert len(planned.sweeps) == 2


def test_the_specialized_rule_takes_the_same_step() -> None:
    algorithm = ADAFACTOR
    hypers = {h.name: h.default for h in algorithm.hypers} | {"maximize": False}
    param, grad, row, col = torch.randn(4, 7, 5, 1, 1, dtype=torch.float64)
    state = {"row_var": row**2, "col_var": col**2, "step": 3.0}
    expected, expected_state = evaluate(algorithm, hypers, param, grad, state)
    planned = plan(specialize_unit_matrices(algorithm), {"factored": True})
    found, found_state = run_plan(planned, hypers, param, grad, state)

    torch.testing.assert_close(found, expected, rtol=1e-15, atol=1e-15)
    for key in ("row_var", "col_var"):
        torch.testing.assert_close(found_state[key], expected_state[key], rtol=1e-15, atol=0)


@pytest.mark.parametrize("word", ["row_norm", "col_norm", "row_rms", "col_rms"])
def test_a_norm_of_one_number_is_its_magnitude(word: str) -> None:
    algorithm = read(f"if factored(p):\n    g = {word}(g) * g\np = p - lr * g")

    assert "g = abs(g) * g" in to_text(specialize_unit_matrices(algorithm))


def test_an_elementwise_rule_stays_as_it_is() -> None:
    algorithm = read("p = p - lr * g")
    assert specialize_unit_matrices(algorithm) == algorithm
