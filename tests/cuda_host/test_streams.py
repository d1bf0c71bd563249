"""Test steps and list functions on several streams, and a host that runs ahead of the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cuda_host.emulated_runtime import Kind, Schedule, host_waits, recorded
from cuda_host.twins import Twins, draw, largest_error
from torch import Tensor

import optgen.optim
from optgen.generated.averaging.ema import ema
from optgen.generated.averaging.swa import swa


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adafactor", "Muon", "NAdam"])
def test_steps_on_a_side_stream(name: str, schedule: Schedule) -> None:
    twins = Twins(getattr(optgen.optim, name), ((24, 24), (40, 30)))
    twins.give_gradients(0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        twins.train(3)

    twins.check()


def test_the_host_runs_ahead_for_forty_steps_with_a_changing_lr(schedule: Schedule) -> None:
    twins = Twins(optgen.optim.AdamW)
    twins.train(1)
    steps = range(1, 41)
    gradients = [
        [draw(tuple(p.shape), 100 * step + i) for i, p in enumerate(twins.params)] for step in steps
    ]
    device_gradients = [[each.cuda() for each in grads] for grads in gradients]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with recorded() as records, torch.cuda.stream(stream):
        for step, grads, device_grads in zip(steps, gradients, device_gradients, strict=True):
            for tensors, given in ((twins.params, device_grads), (twins.host_params, grads)):
                for param, grad in zip(tensors, given, strict=True):
                    param.grad = grad
            twins.set(lr=1e-3 / step)
            twins.step()

    twins.check()
    assert host_waits(records) == []
    assert sum(each.kind == Kind.LAUNCH for each in records) == 2 * len(steps)


def test_two_optimizers_step_on_two_streams(schedule: Schedule) -> None:
    pairs = [Twins(optgen.optim.AdamW), Twins(optgen.optim.AdamW)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for twins in pairs:
        twins.give_gradients(0)
    torch.cuda.synchronize()
    for step in range(1, 4):
        for twins, stream in zip(pairs, streams, strict=True):
            with torch.cuda.stream(stream):
                twins.step()
                twins.give_gradients(step)

    for twins in pairs:
        twins.check()


def test_a_step_moves_from_stream_to_stream(schedule: Schedule) -> None:
    """The caller orders the streams; the optimizer's own tables must follow."""
    twins = Twins(optgen.optim.AdamW)
    streams = [torch.cuda.Stream() for _ in range(3)]
    last = torch.cuda.current_stream()
    for step in range(6):
        stream = streams[step % 3]
        stream.wait_stream(last)
        with torch.cuda.stream(stream):
            twins.set(lr=1e-3 * (step + 1))
            twins.train(1, first=step)
        last = stream

    twins.check()


def test_events_order_a_step_and_its_reader(schedule: Schedule) -> None:
    twins = Twins(optgen.optim.AdamW)
    twins.give_gradients(0)
    torch.cuda.synchronize()
    writer, reader = torch.cuda.Stream(), torch.cuda.Stream()
    stepped, copied = torch.cuda.Event(), torch.cuda.Event()
    with torch.cuda.stream(writer):
        twins.step()
        stepped.record()
    was_done = stepped.query()
    with torch.cuda.stream(reader):
        stepped.wait()
        copies = [param.detach().clone() for param in twins.params]
        copied.record()
    expected = [param.detach().clone() for param in twins.host_params]
    with torch.cuda.stream(writer):
        copied.wait()
        twins.train(1, first=1)
    copied.synchronize()

    assert stepped.query()
    assert was_done == (schedule == Schedule.AT_ONCE) or schedule == Schedule.RANDOM
    assert largest_error(copies, expected) <= 1e-12
    twins.check()


def _full(value: float) -> list[Tensor]:
    return [torch.full((64, 64), value, device="cuda")]


def test_a_list_function_is_called_on_two_streams() -> None:
    ones = _full(1.0)
    ema(_full(0.0), ones, decay=0.5)
    x, y = _full(0.0), _full(0.0)
    a, b = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(a):
        ema(x, ones, decay=0.5)
    with torch.cuda.stream(b):
        ema(y, ones, decay=0.5)
    b.synchronize()
    a.wait_stream(b)  # the caller orders b before a, since a uses y next
    with torch.cuda.stream(a):
        ema(y, ones, decay=0.5)
    torch.cuda.synchronize()

    assert x[0].unique().tolist() == [0.5]
    assert y[0].unique().tolist() == [0.75]


@pytest.mark.parametrize("function", [ema, swa])
def test_a_list_function_takes_turns_on_one_stream(function: Any, schedule: Schedule) -> None:
    options = {"decay": 0.9} if function is ema else {"count": 3}
    lists = [[draw((30, 20), 10 * i + j) for j in range(2)] for i in range(6)]
    host_lists = [[each.clone() for each in tensors] for tensors in lists]
    device_lists = [[each.cuda() for each in tensors] for tensors in lists]
    for _ in range(2):
        for averages in (device_lists, host_lists):
            for i in range(5):
                function(averages[i], averages[5], **options)

    for ours, expected in zip(device_lists, host_lists, strict=True):
        assert largest_error(ours, expected) <= 1e-12
