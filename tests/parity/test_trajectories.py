"""50 steps in float64 end where torch's for-loop ends, whichever way they are taken."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from parity.cases import CASES, LOWERINGS, Case, steps
from parity.trajectories import Run, assert_close, eventful, through

WAYS: list[dict[str, Any]] = [{}, {"foreach": False}, {"foreach": True}, {"fused": True}]


@functools.cache
def reference(case: Case) -> Run:
    return eventful(case.theirs, steps(case))


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_lowering_follows_torch(case: Case, lowering: str) -> None:
    with through(lowering):
        run = eventful(case.ours, steps(case))

    assert_close(run, reference(case))


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_argument_that_chooses_the_way_changes_no_result(
    case: Case, way: dict[str, Any]
) -> None:
    if (
        way.get("foreach")
        and case.name == "Adam"
        and isinstance(case.options.get("lr"), torch.Tensor)
    ):
        pytest.skip("torch refuses")

    run = eventful(functools.partial(case.ours, **way), steps(case))

    assert_close(run, reference(case))
