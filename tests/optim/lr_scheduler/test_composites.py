"""Test nested composites: while a part runs, it has the rates that it has alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optim.lr_scheduler.schedules import (
    ALL,
    COMPOSITES,
    OURS,
    SHAPED,
    SINGLE,
    TORCH,
    SchedulerFactory,
    assert_close,
    chain,
    optimizer_of,
    sequence,
    take_steps,
    trajectory,
    warnings_and_error,
)
from torch_versions import HAS_2_13

# These begin at the current rate, not at the initial one.
FROM_CURRENT_RATE = ("MultiplicativeLR", "SWALR", "averaging", "product-of-chains")
FROM_INITIAL_RATE = [name for name in ALL if not name.startswith(FROM_CURRENT_RATE)]

leaves = st.sampled_from([make for name, make in SINGLE.items() if name in FROM_INITIAL_RATE])
# Before 2.13 torch keeps the rate of a first part that has no steps.
milestones = st.lists(st.integers(0 if HAS_2_13 else 1, 60), min_size=1, max_size=3).map(sorted)


@st.composite
def sequences(draw: Any, parts: Any) -> SchedulerFactory:
    chosen_milestones = draw(milestones)
    return sequence(chosen_milestones, *(draw(parts) for _ in range(len(chosen_milestones) + 1)))


def chains(parts: Any) -> Any:
    return st.lists(parts, min_size=1, max_size=3).map(lambda makers: chain(*makers))


leaves_of_chains = st.sampled_from(
    [make for name, make in SINGLE.items() if not name.startswith("CyclicLR")]
)
NESTED_AS_IN_TORCH = st.recursive(leaves_of_chains | sequences(leaves), chains, max_leaves=6)
"""Nested composites that torch accepts: no sequence contains a composite."""
NESTED = st.recursive(leaves, lambda parts: sequences(parts) | chains(parts), max_leaves=6)
leaves_without_cycles = st.sampled_from(
    [
        make
        for name, make in SINGLE.items()
        if name in FROM_INITIAL_RATE and not name.startswith(("CyclicLR", "OneCycleLR"))
    ]
)
NESTED_WITHOUT_CYCLES = st.recursive(
    leaves_without_cycles,
    lambda parts: sequences(parts) | chains(parts),
    max_leaves=5,
)
"""Composites without cycles: these set the initial rate of schedulers created after them."""


@settings(max_examples=20, deadline=None)
@given(
    make=NESTED_AS_IN_TORCH,
    groups=st.sampled_from([1, 3]),
    lr=st.sampled_from([0.1, 0.0, "tensor"]),
)
def test_nested_composites_that_torch_accepts_have_torchs_rates(
    make: SchedulerFactory, groups: int, lr: Any
) -> None:
    """The absolute bound is for cosines. They end near 0, where only rounding errors remain."""

    def rate() -> Any:
        return torch.tensor(0.1, dtype=torch.float64) if lr == "tensor" else lr

    mine = trajectory(make, OURS, 120, groups=groups, lr=rate())
    assert_close(mine, trajectory(make, TORCH, 120, groups=groups, lr=rate()), atol=1e-14)


@settings(max_examples=20, deadline=None)
@given(make=NESTED)
def test_a_sequence_of_one_part_has_the_rates_of_the_part(make: SchedulerFactory) -> None:
    """Momenta are not compared, because the first momentum of a cycle may differ."""
    wrapped, alone = trajectory(sequence([], make), OURS, 80), trajectory(make, OURS, 80)
    assert_close(wrapped[:, 0], alone[:, 0])


@settings(max_examples=20, deadline=None)
@given(first=NESTED_WITHOUT_CYCLES, second=NESTED_WITHOUT_CYCLES, milestone=st.integers(1, 50))
def test_a_sequence_runs_one_part_after_the_other(
    first: SchedulerFactory, second: SchedulerFactory, milestone: int
) -> None:
    whole = trajectory(sequence([milestone], first, second), OURS, 80)
    alone = trajectory(second, OURS, 80 - milestone)

    assert_close(whole, torch.cat([trajectory(first, OURS, 80)[:milestone], alone]))


@settings(max_examples=30, deadline=None)
@given(make=NESTED, stop=st.integers(1, 70))
def test_a_resumed_nested_composite_has_the_same_rates(
    tmp_path_factory: Any, make: SchedulerFactory, stop: int
) -> None:
    path = tmp_path_factory.mktemp("composite") / "checkpoint.pt"
    scheduler = make(OURS, optimizer_of(groups=2))
    take_steps(scheduler, stop)
    torch.save([scheduler.state_dict(), scheduler.optimizer.state_dict()], path)
    resumed = make(OURS, optimizer_of(groups=2))
    scheduler_state, optimizer_state = torch.load(path)
    resumed.load_state_dict(scheduler_state)
    resumed.optimizer.load_state_dict(optimizer_state)

    assert take_steps(resumed, 60) == take_steps(scheduler, 60)


@pytest.mark.parametrize("name", COMPOSITES)
def test_a_composite_after_a_milestone_works(name: str) -> None:
    """Torch's composite raises an error. Ours works, also in a sequence of torch's class."""
    make = sequence([10], SINGLE["LinearLR"], COMPOSITES[name])
    optimizer = optimizer_of()
    parts = [SINGLE["LinearLR"](OURS, optimizer), COMPOSITES[name](OURS, optimizer)]
    inside_torchs = TORCH.SequentialLR(optimizer, parts, [10])

    whole = trajectory(make, OURS, 60)
    assert_close(take_steps(inside_torchs, 60), whole[1:])
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
        traces.append(take_steps(outer.SequentialLR(optimizer, parts, [3]), 12))

    for trace in traces[1:]:
        assert_close(trace, traces[0])


@pytest.mark.parametrize("stop", [1, 4, 5, 6, 30])
@pytest.mark.parametrize("name", [n for n in COMPOSITES if n != "averaging"])
def test_a_sequence_continues_from_last_epoch(name: str, stop: int) -> None:
    """The constructor advances parts of any kind to this step, and gives no warning."""
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
    assert_close(take_steps(resumed[0], 60 - stop), whole[stop + 1 :])


def test_a_sequence_sets_the_step_of_its_parts() -> None:
    """The sequence resumes at `last_epoch`, even if its parts are at other steps."""
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


def test_steps_of_a_composite_do_not_change_its_deep_copy() -> None:
    scheduler = COMPOSITES["a-product"](OURS, optimizer_of())
    other = copy.deepcopy(scheduler)
    take_steps(scheduler, 5)

    assert other.get_last_lr() != scheduler.get_last_lr()
