"""Plant mistakes into the engine: the comparison of bits must find each of them.

Else the tests of equal bits would say nothing about races.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from offload.schedules import drawn
from offload.scripts import Script, offloaded, reference
from offload.test_same_bits import different

from optgen.offloading.bucket_kernel import BucketKernel
from optgen.offloading.bucket_pipeline import Pipeline
from optgen.offloading.optimizer import OffloadedOptimizer
from optgen.offloading.pinned_ring import Ring
from optgen.offloading.submit_passes import Stepper

Patch = pytest.MonkeyPatch
MAX_SCHEDULES = 40
STEPS = ((1, ""), (2, ""), (1, "weights"), (1, "rate"), (1, ""), (1, ""))
SCRIPT = Script("adamw", 0, True, None, True, STEPS)
STAY, FORWARD = {}, {"hide": "forward"}
LEAVE = {"gradients": "leave", "hide": "forward", "accumulation": 1}


def copies_to_host_do_not_wait(patch: Patch) -> None:
    def copies_wait(ring: Ring, device: torch.device) -> None:
        lane = ring.lanes[device]
        lane.ready.record(torch.accelerator.current_stream(device))
        lane.to_device.wait_event(lane.ready)

    patch.setattr(Ring, "copies_wait", copies_wait)


def copies_to_the_device_do_not_wait(patch: Patch) -> None:
    """Weights are written while operators that were called before the step may read them."""

    def copies_wait(ring: Ring, device: torch.device) -> None:
        lane = ring.lanes[device]
        lane.ready.record(torch.accelerator.current_stream(device))
        lane.to_host.wait_event(lane.ready)

    patch.setattr(Ring, "copies_wait", copies_wait)


def freed_gradients_are_not_recorded(patch: Patch) -> None:
    patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)


def the_kernel_does_not_wait_for_gradients(patch: Patch) -> None:
    patch.setattr(Ring, "wait_received", lambda ring, bucket, slot: None)


def gradient_slots_are_given_back_early(patch: Patch) -> None:
    original = Pipeline.step

    def step(pipeline: Pipeline, work: Any, slot: int, place: int, hypers: Any) -> None:
        waiting = pipeline.waiting if hasattr(pipeline, "waiting") else []
        for later in waiting:
            pipeline.ring.receive(later.bucket, place, later.gradients.items())
            pipeline.ring.wait_received(later.bucket, place)
        original(pipeline, work, slot, place, hypers)

    def arrivals(pipeline: Pipeline, works: Any) -> Iterator[tuple[Any, int]]:
        for this, later in itertools.zip_longest(works, works[1:]):
            pipeline.ring.receive(this.bucket, 0, this.gradients.items())
            pipeline.ring.wait_received(this.bucket, 0)
            pipeline.waiting = [later] if later else []  # type: ignore[attr-defined]
            yield this, 0

    patch.setattr(Pipeline, "_arrivals", arrivals)
    patch.setattr(Pipeline, "step", step)


def weight_slots_are_used_again_early(patch: Patch) -> None:
    patch.setattr(Ring, "weight_slot", lambda ring, bucket: 0)


def modules_do_not_wait(patch: Patch) -> None:
    patch.setattr(Stepper, "_wait_for", lambda *arguments: None)


def modules_wait_for_the_start_of_a_copy(patch: Patch) -> None:
    patch.setattr(Pipeline, "wait_for_weights", lambda pipeline, index: None)


def a_hidden_step_reads_options_late(patch: Patch) -> None:
    original = OffloadedOptimizer._packed_hypers

    class Late(list[Any]):
        def __init__(self, optimizer: Any) -> None:
            self._optimizer = optimizer

        def __iter__(self) -> Iterator[Any]:
            return iter(original(self._optimizer, 1.0))

    patch.setattr(OffloadedOptimizer, "_packed_hypers", lambda optimizer, factor: Late(optimizer))


def changed_weights_are_not_noticed(patch: Patch) -> None:
    patch.setattr(Stepper, "_changed", lambda stepper, bucket: frozenset())


def every_piece_counts_the_step(patch: Patch) -> None:
    original = BucketKernel._state

    def state(kernel: BucketKernel, piece: Any, key: str) -> Any:
        value = piece.owner.tensor(key)
        return value if key == "step" else original(kernel, piece, key)

    patch.setattr(BucketKernel, "_state", state)


MISTAKES: list[tuple[Callable[[Patch], None], dict[str, Any]]] = [
    (copies_to_host_do_not_wait, STAY),
    (copies_to_the_device_do_not_wait, LEAVE),
    (freed_gradients_are_not_recorded, LEAVE),
    (the_kernel_does_not_wait_for_gradients, STAY),
    (gradient_slots_are_given_back_early, STAY),
    (weight_slots_are_used_again_early, STAY),
    (modules_do_not_wait, FORWARD),
    (modules_wait_for_the_start_of_a_copy, FORWARD),
    (a_hidden_step_reads_options_late, FORWARD),
    (changed_weights_are_not_noticed, STAY),
    (every_piece_counts_the_step, {"bucket_bytes": 128}),
]


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize(
    ("mistake", "options"), MISTAKES, ids=[mistake.__name__ for mistake, _ in MISTAKES]
)
def test_a_planted_mistake_is_found(
    mistake: Callable[[Patch], None],
    options: dict[str, Any],
    sim: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = SCRIPT
    if options is LEAVE:
        script = replace(SCRIPT, steps=((1, "average"),) * 6)
    expected = reference(script)
    mistake(monkeypatch)
    for schedule in range(MAX_SCHEDULES):
        settings, drawn_options = drawn(schedule)
        sim.configure(**settings)
        got, _ = offloaded(script, "sim", **{**drawn_options, **options})
        if different(expected, got):
            return
    pytest.fail(f"{mistake.__name__} was not found in {MAX_SCHEDULES} schedules")
