"""Test that the tests of this folder notice faults: each mutation makes one of them fail."""

from __future__ import annotations

from array import array
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import optgen.optim
from benchmarks.gpu_device import capture
from cuda_host.emulated_runtime import Schedule, set_schedule, take_faults
from cuda_host.test_lifetimes import test_a_plan_is_dropped_while_another_stream_reads_its_table
from cuda_host.test_streams import (
    test_a_list_function_is_called_on_two_streams,
    test_the_host_runs_ahead_for_forty_steps_with_a_changing_lr,
)
from cuda_host.twins import Twins
from optgen.runtime.fused_triton import backend, bucket, compilation, launch_plan, table, workspace


def _fails(check: Any, *arguments: Any) -> bool:
    """Tell whether a check fails, or leaves faults."""
    try:
        check(*arguments)
    except (AssertionError, RuntimeError):
        take_faults()
        return True
    return take_faults() != []


def test_one_pinned_buffer_for_all_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers: dict[tuple[int, int], Tensor] = {}

    def upload(target: Tensor, values: array[Any], staging: list[Tensor] | None) -> None:
        source = torch.frombuffer(values, dtype=target.dtype).view(target.shape)
        key = target.data_ptr(), target.numel()
        buffer = buffers.setdefault(key, torch.empty_like(source, pin_memory=True))
        target.copy_(buffer.copy_(source), non_blocking=True)

    monkeypatch.setattr(table, "upload", upload)
    monkeypatch.setattr(workspace, "upload", upload)

    assert _fails(test_the_host_runs_ahead_for_forty_steps_with_a_changing_lr, Schedule.LATE)


def test_one_plan_for_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_plan.LaunchPlan, "is_for_current_streams", lambda plan: True)

    assert _fails(test_a_list_function_is_called_on_two_streams)
    assert _fails(test_a_plan_is_dropped_while_another_stream_reads_its_table, Schedule.LATE)


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


def test_pinned_buffers_of_a_graph_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(list[Tensor]):
        def append(self, each: Tensor) -> None:
            """Keep nothing."""

    plan = launch_plan.LaunchPlan

    def without_staging(lowered: Any, batches: Any, staging: Any) -> Any:
        return plan(lowered, batches, None if staging is None else Forgetful())

    monkeypatch.setattr(backend, "LaunchPlan", without_staging)

    assert _fails(_replay_after_other_steps)


def test_the_tables_of_a_graph_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = optgen.runtime.backends.backend("fused_triton")
    monkeypatch.setattr(triton, "_captured_plans", {})
    monkeypatch.setattr(triton._captured_plans, "setdefault", lambda *_: [], raising=False)

    assert _fails(_replay_after_other_steps)


def test_a_stream_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.Stream, "wait_stream", lambda stream, other: None)

    assert _fails(_replay_after_other_steps)


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
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    from cuda_host.test_bad_devices import test_a_kernel_does_not_compile

    monkeypatch.setattr(launch_plan.LaunchPlan, "compile", lambda *_: None)

    with pytest.raises(Exception, match="Triton|PTXAS"):
        test_a_kernel_does_not_compile("Adagrad", "adagrad_step", tmp_path)


def test_the_schedule_is_as_it_was() -> None:
    set_schedule(Schedule.LATE)
    assert take_faults() == []
