"""Test that our schedulers and torch's load each other's checkpoints from files, at any step."""

from __future__ import annotations

import copy
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from optim.lr_scheduler.schedules import (
    ALL,
    OURS,
    SINGLE,
    TORCH,
    assert_close,
    optimizer_of,
    take_steps,
    trajectory,
)

SAVING_AND_LOADING = {"ours": (OURS, OURS), "to-torch": (OURS, TORCH), "from-torch": (TORCH, OURS)}
PICKLABLE = [n for n in ALL if n.split("-")[0] in ("StepLR", "CosineAnnealingLR", "OneCycleLR")]
PICKLABLE += ["CyclicLR", "LambdaLR-object", "CosineAnnealingWarmRestarts-2", "a-product"]
PICKLABLE += ["SWALR", "warm-up-and-cosine", "three", "product-of-cosines"]


def flatten(state: dict[str, Any]) -> dict[str, Any]:
    """Return a composite's state as one dict: `0.last_epoch` is the first part's `last_epoch`."""
    parts = state.pop("_schedulers", [])
    for index, part in enumerate(parts):
        state |= {f"{index}.{key}": value for key, value in flatten(part).items()}
    return state


@pytest.mark.parametrize("name", ALL)
def test_the_state_has_torchs_keys_types_and_values(name: str) -> None:
    mine, theirs = (ALL[name](library, optimizer_of(groups=2)) for library in (OURS, TORCH))
    for scheduler in (mine, theirs):
        take_steps(scheduler, 7)
    ours, torchs = flatten(mine.state_dict()), flatten(theirs.state_dict())

    assert sorted(ours) == sorted(torchs)
    for key, value in torchs.items():
        assert type(ours[key]) is type(value), key
        assert ours[key] == (pytest.approx(value) if "_last_lr" in key else value), key


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("pair", SAVING_AND_LOADING)
@pytest.mark.parametrize("name", ALL)
def test_a_resumed_training_has_the_same_rates(name: str, pair: str, tmp_path: Path) -> None:
    """A new optimizer and a new scheduler load their states from a file."""
    writer, reader = SAVING_AND_LOADING[pair]
    stop = random.Random(name + pair).randrange(1, 280)
    lr = torch.tensor(0.1, dtype=torch.float64) if stop % 2 else 0.1
    whole = trajectory(ALL[name], TORCH, lr=copy.deepcopy(lr), groups=3)

    scheduler = ALL[name](writer, optimizer_of(lr=copy.deepcopy(lr), groups=3))
    take_steps(scheduler, stop)
    saved = {"lr": scheduler.state_dict(), "optimizer": scheduler.optimizer.state_dict()}
    torch.save(saved, tmp_path / "checkpoint.pt")
    loaded = torch.load(tmp_path / "checkpoint.pt")

    resumed = ALL[name](reader, optimizer_of(lr=copy.deepcopy(lr), groups=3))
    resumed.load_state_dict(loaded["lr"])
    resumed.optimizer.load_state_dict(loaded["optimizer"])
    rest = take_steps(resumed, 300 - stop)

    assert_close(rest, whole[stop + 1 :])


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
@pytest.mark.parametrize("name", PICKLABLE)
def test_a_copy_continues_as_the_original(name: str, make_copy: Any) -> None:
    """A copy has its own optimizer, one for all parts of a composite, and gives no warning."""
    scheduler = ALL[name](OURS, optimizer_of(groups=2))
    other = make_copy(scheduler)
    inner = [part.optimizer for part in getattr(other, "_schedulers", [])]

    assert all(optimizer is other.optimizer for optimizer in inner)
    assert other.optimizer is not scheduler.optimizer
    assert take_steps(other, 9) == take_steps(scheduler, 9)


@pytest.mark.parametrize("name", ALL)
def test_loading_and_stepping_do_not_change_a_saved_state(name: str) -> None:
    scheduler = ALL[name](OURS, optimizer_of())
    take_steps(scheduler, 3)
    saved = scheduler.state_dict()
    before = copy.deepcopy(saved)
    scheduler.load_state_dict(saved)
    take_steps(scheduler, 20)

    assert saved == before
    scheduler.load_state_dict(saved)


def test_a_load_restores_the_last_rates() -> None:
    """The rates are those of the checkpoint, also for each part of a composite."""
    for make in ALL.values():
        scheduler = make(OURS, optimizer_of())
        take_steps(scheduler, 30)
        resumed = make(OURS, optimizer_of())
        resumed.load_state_dict(scheduler.state_dict())
        for each, other in zip(
            getattr(resumed, "_schedulers", [resumed]),
            getattr(scheduler, "_schedulers", [scheduler]),
            strict=True,
        ):
            assert each.get_last_lr() == other.get_last_lr()
        assert resumed.get_last_lr() == scheduler.get_last_lr()


def test_a_state_of_another_composite_is_refused() -> None:
    scheduler = ALL["a-product"](OURS, optimizer_of())
    other = ALL["warm-up-and-cosine"](OURS, optimizer_of())

    with pytest.raises(ValueError, match=r"of 2 schedulers, but this ChainedScheduler has 3"):
        scheduler.load_state_dict(other.state_dict())


@pytest.mark.parametrize("stop", [1, 9, 29, 30])
# SWALR anneals by `_step_count`, which `last_epoch` does not set.
@pytest.mark.parametrize("name", [n for n in SINGLE if "SWALR" not in n])
def test_a_schedule_continues_from_last_epoch(name: str, stop: int) -> None:
    """The optimizer's checkpoint holds the rates."""
    first = SINGLE[name](OURS, optimizer_of())
    take_steps(first, stop)
    resumed = scheduler_at(name, first.optimizer.state_dict(), stop - 1)

    assert resumed.last_epoch == stop
    assert_close(take_steps(resumed, 50), take_steps(first, 50))


def scheduler_at(name: str, checkpoint: dict[str, Any], last_epoch: int) -> Any:
    """Return a scheduler with `last_epoch`, whose optimizer comes from a checkpoint."""

    class LibraryAtLastEpoch:
        def __getattr__(self, kind: str) -> Any:
            return lambda optimizer, **kw: getattr(OURS, kind)(
                optimizer, **kw, last_epoch=last_epoch
            )

    optimizer = optimizer_of()
    optimizer.load_state_dict(checkpoint)
    return SINGLE[name](LibraryAtLastEpoch(), optimizer)
