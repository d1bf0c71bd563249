"""Test the simulated device's streams: order, events, copies, late operators, faults, delays."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import device

SLOW = 0.05


@pytest.fixture(autouse=True)
def loaded() -> None:
    device.load()
    device.reset()


def test_an_operator_reads_when_its_stream_comes_to_it() -> None:
    x, other = torch.ones(4, device="sim"), torch.ones(4, device="sim")
    stream = torch.Stream(device="sim")
    torch.accelerator.synchronize()

    with device.configured(compute=SLOW):
        for _ in range(8):
            other.mul_(2)
        doubled = x * 2
        with stream:
            x.fill_(5.0)
        torch.accelerator.synchronize()

    assert doubled.cpu().eq(10.0).all()


def test_a_stalled_device_begins_nothing() -> None:
    x = torch.ones(4, device="sim")
    torch.accelerator.synchronize()
    with device.configured(stalled=True):
        x.add_(1)
        assert not torch.accelerator.current_stream("sim").query()

    assert x.cpu().eq(2.0).all()


@pytest.mark.parametrize("waits", [True, False])
def test_a_stream_waits_for_an_event_of_another(waits: bool) -> None:
    pinned, x = torch.full((4,), 7.0).pin_memory(), torch.zeros(4, device="sim")
    torch.accelerator.synchronize()
    stream, event = torch.Stream(device="sim"), torch.Event(device="sim")

    with device.configured(latency=SLOW):
        with stream:
            x.copy_(pinned, non_blocking=True)
            event.record(stream)
        if waits:
            torch.accelerator.current_stream("sim").wait_event(event)
        copied = x.clone()
        torch.accelerator.synchronize()

    assert copied.cpu().eq(7.0 if waits else 0.0).all()


def test_events_are_queried_and_timed() -> None:
    begin, end = (torch.Event(device="sim", enable_timing=True) for _ in range(2))
    stream = torch.accelerator.current_stream("sim")
    pinned, x = torch.ones(4).pin_memory(), torch.zeros(4, device="sim")
    with device.configured(latency=SLOW):
        begin.record(stream)
        x.copy_(pinned, non_blocking=True)
        end.record(stream)
        seen_early = end.query()
        end.synchronize()

    assert not seen_early
    assert end.query()
    assert begin.elapsed_time(end) >= 1000 * SLOW


def test_pageable_memory_is_staged_and_pinned_memory_is_read_late() -> None:
    pageable, pinned = torch.ones(4), torch.ones(4).pin_memory()
    copies = [torch.zeros(4, device="sim") for _ in range(2)]
    with device.configured(latency=SLOW):
        for source, target in zip((pageable, pinned), copies, strict=True):
            target.copy_(source, non_blocking=True)
        pageable.fill_(3.0)
        pinned.fill_(3.0)
        torch.accelerator.synchronize()

    assert [each.cpu()[0].item() for each in copies] == [1.0, 3.0]


def test_a_copy_to_pageable_memory_waits() -> None:
    x, target = torch.ones(4, device="sim"), torch.zeros(4)
    with device.configured(latency=SLOW):
        target.copy_(x, non_blocking=True)

    assert target.eq(1.0).all()


@pytest.mark.parametrize("fault", ["fail_after", "fail_operator_after"])
def test_a_fault_is_raised_at_every_wait(fault: str) -> None:
    x, target, pinned = torch.ones(4, device="sim"), torch.ones(4, device="sim"), torch.ones(4)
    pinned = pinned.pin_memory()
    torch.accelerator.synchronize()
    with device.configured(**{fault: 0}):
        if fault == "fail_after":
            target.copy_(pinned, non_blocking=True)
        else:
            x.neg()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="failed, as the test asked"):
                torch.accelerator.synchronize()

    assert (x + 1).cpu().eq(2.0).all()  # after the failure is forgotten


def test_a_seed_fixes_the_delays() -> None:
    def delays(seed: int) -> list[int]:
        pinned, x = torch.ones(4).pin_memory(), torch.zeros(4, device="sim")
        streams = [torch.Stream(stream_id=each, device_index=0, device_type=20) for each in (1, 2)]
        torch.accelerator.synchronize()
        totals = []
        with device.configured(jitter=0.001, seed=seed):
            for index in range(8):
                device.reset_counts()
                with streams[index % 2]:
                    x.copy_(pinned, non_blocking=True)
                torch.accelerator.synchronize()
                totals.append(device.counts()["delayed_microseconds"])
        return totals

    assert delays(1) == delays(1)
    assert delays(1) != delays(2)
    assert len(set(delays(1))) > 4


def test_an_unknown_setting_is_an_error() -> None:
    with pytest.raises(ValueError, match="no setting 'speed'"):
        device.configure(speed=1.0)


def _network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    linear = torch.nn.Linear
    return torch.nn.Sequential(linear(16, 32), torch.nn.Tanh(), linear(32, 8), torch.nn.ReLU())


def _train(model: torch.nn.Module, where: str, steps: int = 3) -> list[Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    batches = torch.randn(steps, 4, 16, generator=torch.Generator().manual_seed(1)).to(where)
    for batch in batches:
        model(batch).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=False)
        optimizer.step()
        optimizer.zero_grad()
    return [param.detach().cpu() for param in model.parameters()]


def test_training_has_the_bits_of_the_cpu_and_runs_in_streams() -> None:
    model = _network()
    theirs = copy.deepcopy(model).to("sim")
    device.reset_counts()

    assert all(map(torch.equal, _train(model, "cpu"), _train(theirs, "sim")))
    assert device.counts()["in_stream"] > 100
    assert device.counts()["on_host"] == 0


def test_what_trainers_use_works(tmp_path: object) -> None:
    model, batch = _network().to("sim"), torch.randn(4, 16).to("sim")
    scaler = torch.amp.GradScaler("sim")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast("sim", dtype=torch.bfloat16):
        assert model(batch).dtype == torch.bfloat16
    again = torch.utils.checkpoint.checkpoint(model, batch, use_reentrant=False)
    scaler.scale(again.square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    path = f"{tmp_path}/model.pt"
    torch.save(model.state_dict(), path)
    loaded = torch.load(path, weights_only=True)
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager")
    compiled(batch).sum().backward()

    assert all(torch.equal(loaded[name].cpu(), p.cpu()) for name, p in model.named_parameters())
    assert next(compiled.parameters()).grad is not None
