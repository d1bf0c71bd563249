"""Test that ours and torch's classes continue from each other's checkpoints, in every lowering."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from parity.cases import CASE_OF_CLASS, LOWERINGS, Case, forced
from parity.classes import CLOSURE
from parity.resume import fresh, in_two_halves, resumed, saved
from parity.trajectories import assert_close, through, train
from torch_versions import HAS_2_12

BOUNDS = {torch.float64: None, torch.float32: 1e-5, torch.bfloat16: 0.05}
"""Largest error allowed in each dtype; None stands for each tensor's bound in float64.

The last test shows that the error from a lost state is larger.
"""
CASES = [case for case in CASE_OF_CLASS.values() if case.name not in CLOSURE]
"""All classes but LBFGS, which amplifies every rounding. test_optim_db.py and optim/test_lbfgs*.py
test LBFGS.
"""


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("case", "lowering"), forced(CASES, also_unforced=True))
def test_torchs_checkpoint_continues_here(
    case: Case, lowering: str | None, dtype: torch.dtype, tmp_path: Path
) -> None:
    expected = in_two_halves(case.theirs, case.theirs, dtype, tmp_path / "theirs.pt")

    with through(lowering):
        found = in_two_halves(case.theirs, case.ours, dtype, tmp_path / "ours.pt")

    assert_close(found, expected, BOUNDS[dtype])


@pytest.mark.parametrize(("case", "lowering"), forced(CASES, also_unforced=True))
def test_our_checkpoint_continues_in_torch(
    case: Case, lowering: str | None, tmp_path: Path
) -> None:
    dtype = torch.float32
    expected = in_two_halves(case.theirs, case.theirs, dtype, tmp_path / "theirs.pt")

    with through(lowering):
        found = in_two_halves(case.ours, case.theirs, dtype, tmp_path / "ours.pt")

    assert_close(found, expected, BOUNDS[dtype])


@pytest.mark.parametrize(("case", "lowering"), forced(CASES))
def test_an_interrupted_training_is_the_same_to_the_last_bit(
    case: Case, lowering: str, tmp_path: Path
) -> None:
    with through(lowering):
        whole = fresh(case.ours, torch.float32)
        train(whole, 20, skip_some_gradients=True)
        halves = in_two_halves(case.ours, case.ours, torch.float32, tmp_path / "ours.pt")

    assert_close(halves, whole, bound=0)


@pytest.mark.parametrize(
    ("first", "second"), list(zip(LOWERINGS, (*LOWERINGS[1:], *LOWERINGS[:1]), strict=True))
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_lowerings_may_change_during_a_training(case: Case, first: str, second: str) -> None:
    expected, run = fresh(case.theirs, torch.float64), fresh(case.ours, torch.float64)
    train(expected, 20, skip_some_gradients=True)

    for turn, lowering in enumerate((first, second, first, second)):
        with through(lowering):
            train(run, 5, 5 * turn, skip_some_gradients=True)

    assert_close(run, expected)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_lost_state_exceeds_the_bounds(case: Case, dtype: torch.dtype, tmp_path: Path) -> None:
    if case.name == "Adagrad" and not HAS_2_12:
        pytest.skip("torch's Adagrad makes a state that is missing since version 2.12")
    expected = in_two_halves(case.theirs, case.theirs, dtype, tmp_path / "theirs.pt")
    path = tmp_path / "ours.pt"
    before = fresh(case.ours, dtype)
    train(before, 10, skip_some_gradients=True)
    before.optimizer.state.clear()
    after = resumed(case.theirs, dtype, saved(before, path))
    train(after, 10, start=10, skip_some_gradients=True)

    with pytest.raises(AssertionError):
        assert_close(after, expected, BOUNDS[dtype])
