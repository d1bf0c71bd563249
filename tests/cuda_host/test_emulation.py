"""Test the emulated runtime: it must notice what a device would punish now and then."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from cuda_host.emulated_runtime import (
    Kind,
    Memory,
    Schedule,
    full_devices,
    host_waits,
    recorded,
    set_schedule,
    take_faults,
)
from torch import Tensor


@triton.jit
def _add_one(x, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(x + lanes, tl.load(x + lanes) + 1)


def test_work_on_a_stream_runs_when_something_waits() -> None:
    stream, x = torch.cuda.Stream(), torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        x += 1
    early = x.tolist()  # the default stream did not wait for the other stream
    torch.cuda.current_stream().wait_stream(stream)

    assert early == [0.0] * 4
    assert x.tolist() == [1.0] * 4


def test_work_runs_at_once_or_in_a_random_order_if_asked(schedule: Schedule) -> None:
    x = torch.zeros(4, device="cuda")
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for stream in streams:
        with torch.cuda.stream(stream):
            x.add_(1.0)
    early = x.tolist()[0]
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)

    assert early == 3.0 if schedule == Schedule.AT_ONCE else early <= 3.0
    assert x.tolist() == [3.0] * 4


def test_a_pinned_buffer_is_read_when_the_copy_runs() -> None:
    source = torch.ones(4).pin_memory()
    target = source.to("cuda", non_blocking=True)
    source.fill_(2.0)

    assert target.tolist() == [2.0] * 4


def test_pageable_memory_is_read_at_once_and_the_host_waits() -> None:
    source = torch.ones(4)
    with recorded() as records:
        target = source.to("cuda")
    source.fill_(2.0)

    assert target.tolist() == [1.0] * 4
    copies = [each for each in records if each.kind == Kind.COPY]
    assert [(each.source, each.target) for each in copies] == [(Memory.PAGEABLE, Memory.DEVICE)]
    assert host_waits(records) == ["cudaStreamSynchronize"]


def test_new_memory_holds_no_numbers() -> None:
    assert torch.empty(1 << 21, device="cuda:1").isnan().all().item()


def test_a_kernel_of_triton_runs_on_its_stream() -> None:
    x = torch.zeros(128, device="cuda")
    for _ in range(2):
        _add_one[(1,)](x, BLOCK=128)

    assert x.tolist() == [2.0] * 128


def test_a_kernel_that_reads_freed_memory_is_a_fault() -> None:
    x, y = torch.zeros(128, device="cuda"), torch.zeros(128, device="cuda")
    part = x.data_ptr(), y
    del x, y
    _launch_at(part[0])
    torch.cuda.synchronize()

    assert "outside" in "".join(take_faults())


def test_a_kernel_that_reads_past_its_tensor_is_a_fault() -> None:
    x = torch.zeros(127, device="cuda")
    _add_one[(1,)](x, BLOCK=128)
    torch.cuda.synchronize()

    assert "outside" in "".join(take_faults())


class _Pointer:
    """An address, as Triton's launcher takes it."""

    dtype = torch.float32

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


def _launch_at(address: int) -> None:
    _add_one[(1,)](_Pointer(address), BLOCK=128)


def test_a_kernel_gets_no_memory_of_another_device() -> None:
    x = torch.zeros(128, device="cuda:1")
    with pytest.raises((RuntimeError, ValueError)):
        _add_one[(1,)](x, BLOCK=128)  # device 0 is current

    assert "another device" in "".join(take_faults())


def test_a_captured_graph_runs_at_its_replays() -> None:
    x = torch.zeros(128, device="cuda")
    _add_one[(1,)](x, BLOCK=128)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _add_one[(1,)](x, BLOCK=128)
        x.mul_(2.0)
    captured = x.tolist()[0]
    graph.replay()
    graph.replay()

    assert captured == 1.0
    assert x.tolist() == [10.0] * 128


@pytest.mark.parametrize("number_of", [Tensor.item, lambda x: torch.cuda.synchronize()])
def test_a_capture_forbids_waits(number_of: object) -> None:
    x = torch.zeros((), device="cuda")
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        number_of(x)  # type: ignore[operator]
    torch.cuda.synchronize()


def test_a_replay_that_reads_freed_memory_is_a_fault() -> None:
    x = torch.zeros(128, device="cuda")
    _add_one[(1,)](x, BLOCK=128)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _add_one[(1,)](x, BLOCK=128)
    del x
    graph.replay()
    torch.cuda.synchronize()

    assert "outside" in "".join(take_faults())


def test_a_full_device_is_out_of_memory() -> None:
    with full_devices(), pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 24, device="cuda")


def test_freed_memory_is_used_again_on_its_own_stream_only() -> None:
    """torch's allocator is the real one: `record_stream` keeps memory that another stream reads."""
    stream, total = torch.cuda.Stream(), torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    for recorded_stream, expected in ((True, 1.0), (False, 7.0)):
        total.zero_()
        x = torch.ones(1000, device="cuda")
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            total.add_(x)
        if recorded_stream:
            x.record_stream(stream)
        del x
        y = torch.full((1000,), 7.0, device="cuda")  # in the memory of x, if nothing forbids it
        torch.cuda.current_stream().synchronize()
        torch.cuda.current_stream().wait_stream(stream)

        assert total.tolist()[0] == expected
        del y
    set_schedule(Schedule.LATE)
