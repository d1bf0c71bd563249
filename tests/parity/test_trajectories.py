"""Test that 50 float64 steps of every lowering end where torch's for-loop ends."""

from __future__ import annotations

import functools

import pytest
from interpreter import INTERPRETED
from parity.cases import CASES, INTERPRETED_CASES, Case, cases_and_lowerings, step_count
from parity.trajectories import BOUND, Run, assert_close, forced_lowering, train_with_events


def bound_of(case: Case) -> float | None:
    """Return the strict bound for ASGD, whose own bound is for loaded checkpoints."""
    return BOUND if case.name == "ASGD" else None


@functools.cache
def reference(case: Case) -> Run:
    return train_with_events(case.theirs, step_count(case))


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize(
    ("case", "lowering"), cases_and_lowerings(INTERPRETED_CASES if INTERPRETED else CASES)
)
def test_a_lowering_ends_where_torch_does(case: Case, lowering: str) -> None:
    with forced_lowering(lowering):
        run = train_with_events(case.ours, step_count(case))

    assert_close(run, reference(case), bound_of(case))
