"""Test that the tests of this folder notice faults: each mutation makes one of them fail."""

from __future__ import annotations

from array import array
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_host import test_bad_devices, test_lifetimes, test_streams
from cuda_host.emulated_runtime import Schedule, take_faults
from cuda_host.twins import Twins
from torch import Tensor

import optgen.optim
from benchmarks.gpu_device import capture
from optgen.runtime.fused_triton import (
    bucket,
    compilation,
    graph_memory,
    sort_into_buckets,
    table,
    workspace,
)


def _fails(check: Any, *arguments: Any) -> bool:
    """Tell whether a check fails, or leaves faults."""
    try:
        check(*arguments)
    except (Exception, pytest.fail.Exception):
        take_faults()
        return True
    return take_faults() != []


def test_one_pinned_buffer_for_all_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers: dict[tuple[int, int], Tensor] = {}

    def upload(target: Tensor, values: array[Any], memory: Any) -> None:
        source = torch.frombuffer(values, dtype=target.dtype).view(target.shape)
        key = target.data_ptr(), target.numel()
        buffer = buffers.setdefault(key, torch.empty_like(source, pin_memory=True))
        target.copy_(buffer.copy_(source), non_blocking=True)

    monkeypatch.setattr(table, "upload", upload)
    monkeypatch.setattr(workspace, "upload", upload)

    assert _fails(
        test_streams.test_the_host_runs_ahead_for_forty_steps_with_a_changing_lr, Schedule.LATE
    )


def test_one_plan_for_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sort_into_buckets.StepBuckets, "is_for_current_streams", lambda step_buckets: True
    )

    assert _fails(test_streams.test_a_list_function_is_called_on_two_streams)
    assert _fails(
        test_lifetimes.test_a_plan_is_dropped_while_another_stream_reads_its_table, Schedule.LATE
    )


def test_no_device_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bucket, compilation):
        monkeypatch.setattr(module, "launch_context", lambda device: nullcontext())

    def step_on_both() -> None:
        twins = Twins(optgen.optim.AdamW, devices=("cuda:0", "cuda:1"))
        twins.train(1)
        twins.check()

    assert _fails(step_on_both)


def _replay_after_other_steps() -> None:
    """Capture a step, take eager steps of other optimizers, and replay."""
    twins = Twins(optgen.optim.AdamW, fused=True, capturable=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        twins.train(1)
    torch.cuda.synchronize()
    replay = capture(twins.optimizer.step)
    for step in range(1, 4):
        Twins(optgen.optim.AdamW).train(2)
        twins.give_gradients(step, in_place=True)
        replay()
        twins.step_oracle()
    twins.check()


def test_replays_after_other_steps_are_right() -> None:
    assert not _fails(_replay_after_other_steps)


def test_a_graph_does_not_bring_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_memory.GraphMemory, "flush", lambda memory: None)

    assert _fails(_replay_after_other_steps)


def test_a_stream_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.Stream, "wait_stream", lambda stream, other: None)

    assert _fails(test_streams.test_a_step_moves_from_stream_to_stream, Schedule.LATE)


def test_memory_that_another_stream_reads_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients that one stream makes and another reads: `record_stream` must keep them."""

    def train() -> None:
        twins = Twins(optgen.optim.AdamW)
        twins.train(1)
        stream, main = torch.cuda.Stream(), torch.cuda.current_stream()
        for step in range(1, 4):
            twins.give_gradients(step)
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                twins.step()
            for param in twins.params:
                assert param.grad is not None
                param.grad.record_stream(stream)
            twins.optimizer.zero_grad()
        main.wait_stream(stream)
        twins.check()

    assert not _fails(train)
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: None)
    assert _fails(train)


def test_kernels_are_compiled_when_they_are_launched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sort_into_buckets.StepBuckets, "compile", lambda *_: None)

    assert _fails(
        test_bad_devices.test_a_kernel_does_not_compile, "Adagrad", "adagrad_step", tmp_path
    )
