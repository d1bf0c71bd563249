"""Test nested composites: in its turn, each part has the rates that it has alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from newest import HAS_2_13
from optim.lr_scheduler.schedules import (
    ALL,
    COMPOSITES,
    OURS,
    SHAPED,
    SINGLE,
    TORCH,
    Make,
    assert_close,
    chain,
    optimizer_of,
    sequence,
    steps,
    trajectory,
    warnings_and_error,
)

# These begin at the current rate, not at the initial one.
FROM_CURRENT_RATE = ("MultiplicativeLR", "SWALR", "averaging", "product-of-chains")
FROM_INITIAL_RATE = [name for name in ALL if not name.startswith(FROM_CURRENT_RATE)]

leaves = st.sampled_from([make for name, make in SINGLE.items() if name in FROM_INITIAL_RATE])
# Before 2.13 torch keeps the rate of a part that ends at once.
milestones = st.lists(st.integers(0 if HAS_2_13 else 1, 60), min_size=1, max_size=3).map(sorted)


@st.composite
def sequences(draw: Any, parts: Any) -> Make:
    drawn = draw(milestones)
    return sequence(drawn, *(draw(parts) for _ in range(len(drawn) + 1)))


def chains(parts: Any) -> Any:
    return st.lists(parts, min_size=1, max_size=3).map(lambda makers: chain(*makers))


not_cyclic = [make for name, make in SINGLE.items() if not name.startswith("CyclicLR")]
plain = st.sampled_from(not_cyclic)
NESTS_OF_TORCH = st.recursive(plain | sequences(leaves), chains, max_leaves=6)
"""The nests that torch takes: no sequence contains a composite."""
NESTS = st.recursive(leaves, lambda parts: sequences(parts) | chains(parts), max_leaves=6)
NESTS_WITHOUT_CYCLES = st.recursive(
    # without CyclicLR and OneCycleLR
    st.sampled_from(
        [make for name, make in SINGLE.items() if name in FROM_INITIAL_RATE and "yc" not in name]
    ),
    lambda parts: sequences(parts) | chains(parts),
    max_leaves=5,
)
"""Any nest without cycles, which change the initial rate for all schedulers created after them."""


@settings(max_examples=60, deadline=None)
@given(
    make=NESTS_OF_TORCH, groups=st.sampled_from([1, 3]), lr=st.sampled_from([0.1, 0.0, "tensor"])
)
def test_nests_that_torch_takes_have_its_rates(make: Make, groups: int, lr: Any) -> None:
    """The absolute bound is for a cosine, which may subtract all but rounding errors of a rate."""

    def rate() -> Any:
        return torch.tensor(0.1, dtype=torch.float64) if lr == "tensor" else lr

    mine = trajectory(make, OURS, 120, groups=groups, lr=rate())
    assert_close(mine, trajectory(make, TORCH, 120, groups=groups, lr=rate()), atol=1e-14)


@settings(max_examples=40, deadline=None)
@given(make=NESTS)
def test_a_sequence_of_one_part_has_its_rates(make: Make) -> None:
    """Momenta are not compared, because the first one of a cycle may differ."""
    wrapped, alone = trajectory(sequence([], make), OURS, 80), trajectory(make, OURS, 80)
    assert_close(wrapped[:, 0], alone[:, 0])


@settings(max_examples=40, deadline=None)
@given(first=NESTS_WITHOUT_CYCLES, second=NESTS_WITHOUT_CYCLES, milestone=st.integers(1, 50))
def test_a_sequence_runs_one_part_after_the_other(
    first: Make, second: Make, milestone: int
) -> None:
    whole = trajectory(sequence([milestone], first, second), OURS, 80)
    alone = trajectory(second, OURS, 80 - milestone)

    assert_close(whole, torch.cat([trajectory(first, OURS, 80)[:milestone], alone]))


@settings(max_examples=30, deadline=None)
@given(make=NESTS, stop=st.integers(1, 70))
def test_a_resumed_nest_has_the_same_rates(tmp_path_factory: Any, make: Make, stop: int) -> None:
    path = tmp_path_factory.mktemp("nest") / "checkpoint.pt"
    scheduler = make(OURS, optimizer_of(groups=2))
    steps(scheduler, stop)
    torch.save([scheduler.state_dict(), scheduler.optimizer.state_dict()], path)
    resumed = make(OURS, optimizer_of(groups=2))
    mine, optimizer = torch.load(path)
    resumed.load_state_dict(mine)
    resumed.optimizer.load_state_dict(optimizer)

    assert steps(resumed, 60) == steps(scheduler, 60)


@pytest.mark.parametrize("name", COMPOSITES)
def test_a_composite_after_a_milestone_works(name: str) -> None:
    """torch's composite raises an error there. Ours works, also in a sequence of torch's."""
    make = sequence([10], SINGLE["LinearLR"], COMPOSITES[name])
    optimizer = optimizer_of()
    parts = [SINGLE["LinearLR"](OURS, optimizer), COMPOSITES[name](OURS, optimizer)]
    inside_torchs = TORCH.SequentialLR(optimizer, parts, [10])

    whole = trajectory(make, OURS, 60)
    assert_close(steps(inside_torchs, 60), whole[1:])
    if name in FROM_INITIAL_RATE:
        assert_close(whole[10:], trajectory(COMPOSITES[name], OURS, 50))
    with pytest.raises(NotImplementedError):
        trajectory(make, TORCH, 60)


@pytest.mark.parametrize("library", ["torch", "ours"])
def test_a_composite_takes_parts_of_both_libraries(library: str) -> None:
    outer = {"torch": TORCH, "ours": OURS}[library]
    traces = []
    for inner in ([OURS, TORCH], [TORCH, OURS], [OURS, OURS], [TORCH, TORCH]):
        optimizer = optimizer_of()
        parts = [SINGLE["LinearLR"](inner[0], optimizer), SINGLE["StepLR-1"](inner[1], optimizer)]
        traces.append(steps(outer.SequentialLR(optimizer, parts, [3]), 12))

    for trace in traces[1:]:
        assert_close(trace, traces[0])


@pytest.mark.parametrize("stop", [1, 4, 5, 6, 30])
@pytest.mark.parametrize("name", [n for n in COMPOSITES if n != "averaging"])
def test_a_sequence_continues_from_last_epoch(name: str, stop: int) -> None:
    """The constructor goes to this step, with parts of any kind, and gives no warning."""
    make = COMPOSITES[name]
    whole = trajectory(sequence([], make), OURS, 60)
    resumed: list[Any] = []

    def resume() -> None:
        optimizer = optimizer_of()
        resumed.append(
            OURS.SequentialLR(optimizer, [make(OURS, optimizer)], [], last_epoch=stop - 1)
        )

    assert warnings_and_error(resume) == []
    assert resumed[0].last_epoch == stop
    assert_close(steps(resumed[0], 60 - stop), whole[stop + 1 :])


def test_a_sequence_moves_its_parts_to_its_own_step() -> None:
    """A sequence goes to its step, even if its parts have other step numbers."""
    optimizer = optimizer_of(lr=1.0)
    SINGLE["StepLR-1"](OURS, optimizer)  # leaves initial_lr
    parts = [OURS.ExponentialLR(optimizer, gamma, last_epoch=4) for gamma in (0.5, 0.1)]
    scheduler = OURS.SequentialLR(optimizer, parts, [3], last_epoch=4)

    assert [part.last_epoch for part in parts] == [2, 2]
    assert scheduler.get_last_lr() == pytest.approx([0.01])


def test_recursive_undo_takes_every_part_one_step_back() -> None:
    optimizer = optimizer_of()
    inner = [SHAPED[name](OURS, optimizer) for name in ("LinearLR", "StepLR-1")]
    scheduler = OURS.ChainedScheduler(inner)
    OURS.SequentialLR(optimizer, [OURS.LinearLR(optimizer)], []).recursive_undo(scheduler)

    assert [part.last_epoch for part in inner] == [-1, -1]


def test_a_deep_copy_shares_nothing() -> None:
    scheduler = COMPOSITES["a-product"](OURS, optimizer_of())
    other = copy.deepcopy(scheduler)
    steps(scheduler, 5)

    assert other.get_last_lr() != scheduler.get_last_lr()
