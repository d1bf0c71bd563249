"""Checkpoints go both ways in the middle of a training, through files, for every lowering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from parity.cases import FULL, LOWERINGS, Case
from parity.trajectories import SHAPES, Make, Run, assert_close, parameters, through, train

BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}
"""A state that was lost or read wrongly is an error of 0.1 and more, see the last test."""


def fresh(make: Make, dtype: torch.dtype) -> Run:
    params = parameters(SHAPES, dtype)
    return Run(make(params), params)


def saved(run: Run, path: Path) -> Path:
    torch.save({"params": [p.data for p in run.params], "optim": run.optimizer.state_dict()}, path)
    return path


def resumed(make: Make, dtype: torch.dtype, path: Path) -> Run:
    checkpoint: dict[str, Any] = torch.load(path, weights_only=True)
    run = fresh(make, dtype)
    for param, value in zip(run.params, checkpoint["params"], strict=True):
        param.data.copy_(value)
    run.optimizer.load_state_dict(checkpoint["optim"])
    return run


def in_two_halves(first: Make, second: Make, dtype: torch.dtype, path: Path) -> Run:
    """10 steps, a file, and 10 more; between them every gradient is there and none is."""
    before = fresh(first, dtype)
    train(before, 10, skip=True)
    after = resumed(second, dtype, saved(before, path))
    train(after, 10, start=10, skip=True)
    return after


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("lowering", [None, *LOWERINGS])
@pytest.mark.parametrize("case", FULL.values(), ids=str)
def test_torchs_checkpoint_continues_here(
    case: Case, lowering: str | None, dtype: torch.dtype, tmp_path: Path
) -> None:
    expected = in_two_halves(case.theirs, case.theirs, dtype, tmp_path / "theirs.pt")

    with through(lowering):
        found = in_two_halves(case.theirs, case.ours, dtype, tmp_path / "ours.pt")

    assert_close(found, expected, BOUNDS[dtype])


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("lowering", [None, *LOWERINGS])
@pytest.mark.parametrize("case", FULL.values(), ids=str)
def test_our_checkpoint_continues_in_torch(
    case: Case, lowering: str | None, dtype: torch.dtype, tmp_path: Path
) -> None:
    expected = in_two_halves(case.theirs, case.theirs, dtype, tmp_path / "theirs.pt")

    with through(lowering):
        found = in_two_halves(case.ours, case.theirs, dtype, tmp_path / "ours.pt")

    assert_close(found, expected, BOUNDS[dtype])


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("case", FULL.values(), ids=str)
def test_a_training_that_was_interrupted_is_the_same_to_the_last_bit(
    case: Case, lowering: str, tmp_path: Path
) -> None:
    with through(lowering):
        whole = fresh(case.ours, torch.float32)
        train(whole, 20, skip=True)
        halves = in_two_halves(case.ours, case.ours, torch.float32, tmp_path / "ours.pt")

    assert_close(halves, whole, bound=0)


@pytest.mark.parametrize("first", LOWERINGS)
@pytest.mark.parametrize("second", LOWERINGS)
@pytest.mark.parametrize("case", FULL.values(), ids=str)
def test_lowerings_take_turns(case: Case, first: str, second: str) -> None:
    expected, run = fresh(case.theirs, torch.float64), fresh(case.ours, torch.float64)
    train(expected, 20, skip=True)

    for start, lowering in enumerate((first, second, first, second)):
        with through(lowering):
            train(run, 5, 5 * start, skip=True)

    assert_close(run, expected)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("case", FULL.values(), ids=str)
def test_the_bounds_notice_a_state_that_was_lost(
    case: Case, dtype: torch.dtype, tmp_path: Path
) -> None:
    expected = in_two_halves(case.theirs, case.theirs, dtype, tmp_path / "theirs.pt")
    path = tmp_path / "ours.pt"
    before = fresh(case.ours, dtype)
    train(before, 10, skip=True)
    before.optimizer.state.clear()
    after = resumed(case.theirs, dtype, saved(before, path))
    train(after, 10, start=10, skip=True)

    with pytest.raises(AssertionError):
        assert_close(after, expected, BOUNDS[dtype])
