"""Test that our and torch's classes continue from each other's checkpoints, in every lowering."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from parity.cases import CASE_OF_CLASS, LOWERINGS, Case, cases_and_lowerings
from parity.classes import CLOSURE_CLASSES
from parity.resume import new_run, resume_run, save_run, train_in_two_halves
from parity.trajectories import assert_close, forced_lowering, train
from torch_versions import HAS_2_12

BOUNDS = {torch.float64: None, torch.float32: 1e-5, torch.bfloat16: 0.05}
"""Largest relative error in each dtype; with None, each tensor has its own bound.

The last test shows that the error from a lost state is larger.
"""
CASES = [case for case in CASE_OF_CLASS.values() if case.name not in CLOSURE_CLASSES]
"""All classes except LBFGS, which amplifies every rounding error.

test_optim_db.py and optim/test_lbfgs*.py test LBFGS.
"""


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("case", "lowering"), cases_and_lowerings(CASES, also_unforced=True))
def test_our_class_continues_from_torchs_checkpoint(
    case: Case, lowering: str | None, dtype: torch.dtype, tmp_path: Path
) -> None:
    expected = train_in_two_halves(case.theirs, case.theirs, dtype, tmp_path / "theirs.pt")

    with forced_lowering(lowering):
        found = train_in_two_halves(case.theirs, case.ours, dtype, tmp_path / "ours.pt")

    assert_close(found, expected, BOUNDS[dtype])


@pytest.mark.parametrize(("case", "lowering"), cases_and_lowerings(CASES, also_unforced=True))
def test_torchs_class_continues_from_our_checkpoint(
    case: Case, lowering: str | None, tmp_path: Path
) -> None:
    dtype = torch.float32
    expected = train_in_two_halves(case.theirs, case.theirs, dtype, tmp_path / "theirs.pt")

    with forced_lowering(lowering):
        found = train_in_two_halves(case.ours, case.theirs, dtype, tmp_path / "ours.pt")

    assert_close(found, expected, BOUNDS[dtype])


@pytest.mark.parametrize(("case", "lowering"), cases_and_lowerings(CASES))
def test_an_interrupted_training_ends_bitwise_equal(
    case: Case, lowering: str, tmp_path: Path
) -> None:
    with forced_lowering(lowering):
        whole = new_run(case.ours, torch.float32)
        train(whole, 20, skip_some_gradients=True)
        halves = train_in_two_halves(case.ours, case.ours, torch.float32, tmp_path / "ours.pt")

    assert_close(halves, whole, bound=0)


@pytest.mark.parametrize(
    ("first", "second"), list(zip(LOWERINGS, (*LOWERINGS[1:], *LOWERINGS[:1]), strict=True))
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_lowerings_may_change_during_a_training(case: Case, first: str, second: str) -> None:
    expected, run = new_run(case.theirs, torch.float64), new_run(case.ours, torch.float64)
    train(expected, 20, skip_some_gradients=True)

    for turn, lowering in enumerate((first, second, first, second)):
        with forced_lowering(lowering):
            train(run, 5, 5 * turn, skip_some_gradients=True)

    assert_close(run, expected)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_error_from_a_lost_state_exceeds_the_bounds(
    case: Case, dtype: torch.dtype, tmp_path: Path
) -> None:
    if case.name == "Adagrad" and not HAS_2_12:
        pytest.skip("torch's Adagrad makes a state that is missing since version 2.12")
    expected = train_in_two_halves(case.theirs, case.theirs, dtype, tmp_path / "theirs.pt")
    path = tmp_path / "ours.pt"
    before = new_run(case.ours, dtype)
    train(before, 10, skip_some_gradients=True)
    before.optimizer.state.clear()
    after = resume_run(case.theirs, dtype, save_run(before, path))
    train(after, 10, start=10, skip_some_gradients=True)

    with pytest.raises(AssertionError):
        assert_close(after, expected, BOUNDS[dtype])
