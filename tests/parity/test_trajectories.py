"""Test that 50 steps in float64 end where torch's for-loop ends, whichever lowering takes them."""

from __future__ import annotations

import functools

import pytest
from interpreter import INTERPRETED
from parity.cases import CASES, INTERPRETED_CASES, Case, forced, steps
from parity.trajectories import BOUND, Run, assert_close, eventful, through


def exact(case: Case) -> float | None:
    """Return the strict bound for ASGD; its wider bound is for loaded checkpoints."""
    return BOUND if case.name == "ASGD" else None


@functools.cache
def reference(case: Case) -> Run:
    return eventful(case.theirs, steps(case))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("case", "lowering"), forced(INTERPRETED_CASES if INTERPRETED else CASES))
def test_a_lowering_follows_torch(case: Case, lowering: str) -> None:
    with through(lowering):
        run = eventful(case.ours, steps(case))

    assert_close(run, reference(case), exact(case))
