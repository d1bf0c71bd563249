"""Test that memory which a queued kernel reads is not freed, and not written again, under it."""

from __future__ import annotations

import gc
from copy import copy

import pytest
import torch
from cuda_host.emulated_runtime import Schedule
from cuda_host.twins import Twins

import optgen.optim


def _spoil_free_memory() -> None:
    """Allocate what torch's allocator has free for the current stream, and fill it with NaN."""
    sizes = [2**power for power in range(14, 3, -1)]
    spoilers = [torch.full((size,), torch.nan, device="cuda") for size in sizes for _ in range(32)]
    del spoilers


@pytest.fixture(autouse=True)
def few_free_blocks(operations: object) -> None:
    """Give cached memory back, so that `_spoil_free_memory` finds all that a test frees."""
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("name", ["AdamW", "Adafactor", "Muon", "LAMB"])
def test_gradients_are_freed_as_soon_as_a_step_is_queued(name: str, schedule: Schedule) -> None:
    twins = Twins(getattr(optgen.optim, name), ((24, 24), (40, 30)))
    for step in range(3):
        twins.train(1, first=step)
        twins.optimizer.zero_grad()
        _spoil_free_memory()

    twins.check()


def test_a_plan_is_dropped_while_its_kernels_are_queued(schedule: Schedule) -> None:
    twins = Twins(optgen.optim.Adafactor, ((24, 24), (40, 30)))
    for step in range(5):
        twins.give_gradients(step)
        if step % 2:  # another set of gradients: another plan
            twins.params[0].grad = twins.host_params[0].grad = None
        twins.step()
        _spoil_free_memory()

    twins.check()


def test_an_optimizer_is_deleted_while_its_kernels_are_queued(schedule: Schedule) -> None:
    twins = Twins(optgen.optim.AdamW)
    twins.train(2)
    del twins.optimizer
    gc.collect()
    _spoil_free_memory()

    assert twins.error() <= 1e-12


def test_a_plan_is_dropped_while_another_stream_reads_its_table(schedule: Schedule) -> None:
    torch.cuda.empty_cache()
    twins = Twins(optgen.optim.AdamW)
    twins.train(1)
    stream, main = torch.cuda.Stream(), torch.cuda.current_stream()
    twins.give_gradients(1)
    stream.wait_stream(main)
    # What the caller allocated on the first stream, the caller keeps; the rest is the optimizer's.
    kept = [param.grad for param in twins.params], copy(twins.optimizer.state)
    with torch.cuda.stream(stream):
        twins.step()
        twins.params[0].grad = twins.host_params[0].grad = None
        twins.step()  # by another plan
        del twins.optimizer  # and with it all plans
        gc.collect()
    _spoil_free_memory()
    main.synchronize()

    assert twins.error() <= 1e-12
    del kept
