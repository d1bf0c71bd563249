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
    """Fill all memory that torch's allocator has free for the current stream with NaN."""
    spoilers = []
    while sizes := _free_sizes():
        spoilers += [torch.full((size // 4,), torch.nan, device="cuda") for size in sizes]
        assert len(spoilers) < 10_000


_LARGEST_SMALL = 1 << 20
"""torch's allocator serves larger requests from another pool."""


def _free_sizes() -> list[int]:
    """Return sizes of requests that together take the free memory, the largest first."""
    stream = torch.cuda.current_stream().cuda_stream
    sizes = []
    for segment in torch.cuda.memory_snapshot():
        if segment["stream"] != stream or segment["device"] != torch.cuda.current_device():
            continue
        most = _LARGEST_SMALL if segment["segment_type"] == "small" else segment["total_size"]
        for free in (b["size"] for b in segment["blocks"] if b["state"] == "inactive"):
            sizes += [most] * (free // most) + [free % most] * bool(free % most)
    return sorted(sizes, reverse=True)


@pytest.fixture(autouse=True)
def few_free_blocks(operations: object) -> None:
    """Give cached memory back, so that `_spoil_free_memory` has little to fill."""
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
