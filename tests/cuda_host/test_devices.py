"""Test optimizers with parameters on two devices, whichever of them is current."""

from __future__ import annotations

import pytest
import torch
from cuda_host.emulated_runtime import Kind, Schedule, recorded
from cuda_host.twins import Twins

import optgen
import optgen.optim

BOTH = ("cuda:0", "cuda:1")
MATRICES = ((24, 24), (40, 30))


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("name", ["AdamW", "Adafactor", "Muon"])
def test_two_devices_in_one_optimizer(name: str, current: int) -> None:
    with torch.cuda.device(current):
        twins = Twins(getattr(optgen.optim, name), MATRICES, BOTH)
        twins.train(2)
        twins.set(lr=3e-3)
        with recorded() as records:
            twins.train(1, first=2)

        assert torch.cuda.current_device() == current

    twins.check()
    assert {each.device for each in records if each.kind == Kind.LAUNCH} == {0, 1}


@pytest.mark.parametrize("lowering", ["foreach", "forloop"])
def test_two_devices_in_eager_steps(lowering: str) -> None:
    twins = Twins(optgen.optim.AdamW, MATRICES, BOTH)
    with optgen.use_lowering(lowering):
        twins.train(2)

    twins.check()


def test_side_streams_of_both_devices(schedule: Schedule) -> None:
    twins = Twins(optgen.optim.AdamW, MATRICES, BOTH)
    twins.give_gradients(0)
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    streams = [torch.cuda.Stream(device) for device in BOTH]
    with torch.cuda.stream(streams[0]), torch.cuda.stream(streams[1]):
        twins.train(3)

    twins.check()


@pytest.mark.parametrize("place", ["cpu", "cuda:0", "cuda:1"])
def test_a_learning_rate_on_one_device_is_read_on_both(place: str) -> None:
    lr = torch.tensor(1e-3, dtype=torch.float64, device=place)
    twins = Twins(optgen.optim.AdamW, MATRICES, BOTH, lr=lr, fused=True)
    twins.train(2)
    lr.fill_(0.1)
    twins.oracle.param_groups[0]["lr"] = 0.1
    twins.train(1, first=2)

    twins.check()


def test_a_scaler_on_one_device_unscales_on_both() -> None:
    twins = Twins(optgen.optim.AdamW, MATRICES, BOTH, dtype=torch.float32, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    for step in range(3):
        scaler.scale(torch.ones((), device="cuda"))
        twins.give_gradients(step, scale=scaler.get_scale())
        if step == 1:
            twins.params[-1].grad = torch.full_like(twins.params[-1], torch.inf)
        scaler.step(twins.optimizer)
        if step != 1:
            twins.step_oracle()
        scaler.update()

    twins.check()
    assert scaler.get_scale() == 2.0


def test_a_step_is_captured_on_the_second_device() -> None:
    with torch.cuda.device(1):
        twins = Twins(optgen.optim.AdamW, devices=BOTH[1:], fused=True, capturable=True)
        twins.give_gradients(0)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            twins.step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):  # torch's own is of the first device
            twins.optimizer.step()
        for step in range(1, 4):
            twins.give_gradients(step, in_place=True)
            graph.replay()
            twins.step_oracle()

        twins.check()
