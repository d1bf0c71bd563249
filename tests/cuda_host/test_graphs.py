"""Test captured steps: what a graph holds, its replays, and eager steps between them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from cuda_host.emulated_runtime import Kind, captured_copies, recorded
from cuda_host.twins import Twins

import optgen
import optgen.optim
from benchmarks.gpu_device import capture


def _warm_up(twins: Twins, steps: int = 1) -> None:
    """Take the eager steps on another stream that torch asks for before a capture."""
    twins.give_gradients(0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for step in range(steps):
            twins.give_gradients(step, in_place=True)
            twins.step()
    torch.cuda.current_stream().wait_stream(stream)


def _replay(twins: Twins, replay: Any, step: int) -> None:
    twins.give_gradients(step, in_place=True)
    replay()
    twins.step_oracle()


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adafactor", "Muon"])
def test_replays_are_steps(name: str) -> None:
    lr = torch.tensor(1e-3, dtype=torch.float64, device="cuda")
    cls = getattr(optgen.optim, name)
    twins = Twins(cls, ((24, 24), (40, 30)), lr=lr, capturable=True)
    twins.oracle.param_groups[0]["lr"] = 1e-3
    with optgen.use_lowering("fused_triton"):
        _warm_up(twins)
        replay = capture(twins.optimizer.step)
    for step in range(1, 5):
        if step == 3:
            lr.fill_(0.1)
            twins.oracle.param_groups[0]["lr"] = 0.1
        _replay(twins, replay, step)

    twins.check()


def test_eager_steps_stand_between_replays() -> None:
    twins = Twins(optgen.optim.AdamW, fused=True, capturable=True)
    _warm_up(twins)
    replay = capture(twins.optimizer.step)
    for step in range(1, 7):
        _replay(twins, replay if step % 2 else twins.optimizer.step, step)

    twins.check()


def test_a_scaler_skips_and_unscales_in_a_graph() -> None:
    twins = Twins(optgen.optim.AdamW, dtype=torch.float32, fused=True, capturable=True)
    ours = twins.optimizer
    ours.grad_scale = torch.full((), 4.0, device="cuda")
    ours.found_inf = torch.zeros((), device="cuda")
    twins.give_gradients(0, scale=4.0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        twins.step()
    torch.cuda.synchronize()
    replay = capture(ours.step)
    for step in range(1, 5):
        twins.give_gradients(step, scale=4.0, in_place=True)
        ours.found_inf.fill_(float(step == 3))
        replay()
        if step != 3:
            twins.step_oracle()

    twins.check()


def test_two_graphs_of_one_optimizer_take_turns() -> None:
    twins = Twins(optgen.optim.AdamW, fused=True, capturable=True)
    _warm_up(twins)
    replays = [capture(twins.optimizer.step) for _ in range(2)]
    for step in range(1, 5):
        _replay(twins, replays[step % 2], step)

    twins.check()


@pytest.mark.parametrize("lowering", [None, "foreach", "forloop"])
@pytest.mark.parametrize("name", ["AdamW", "SGD", "RAdam", "NAdam"])
def test_a_step_is_captured_in_every_lowering(name: str, lowering: str | None) -> None:
    twins = Twins(getattr(optgen.optim, name), ((40, 30), (7,)), capturable=True)
    if name == "NAdam":
        twins.limit = 1e-9  # its product of momenta is stored in float32
    with optgen.use_lowering(lowering) if lowering else nullcontext():
        _warm_up(twins)
        replay = capture(twins.optimizer.step)
    for step in range(1, 4):
        _replay(twins, replay, step)

    twins.check()


def _captured_nodes(name: str) -> list[Any]:
    twins = Twins(getattr(optgen.optim, name), ((24, 24), (40, 30)), capturable=True)
    with optgen.use_lowering("fused_triton"):
        _warm_up(twins)
        with recorded() as records:
            capture(twins.optimizer.step)
    assert sum(each.captured and each.kind == Kind.LAUNCH for each in records) >= 2
    assert [each.title for each in records if each.kind == Kind.REFUSED] == []
    return captured_copies(records)


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adafactor", "Muon"])
def test_a_captured_step_has_at_most_one_copy(name: str) -> None:
    assert len(_captured_nodes(name)) <= 1


def test_a_captured_step_holds_its_tables_for_as_long_as_it_is_replayed() -> None:
    """Another plan of the same optimizer must not free what a graph reads."""
    twins = Twins(optgen.optim.AdamW, fused=True, capturable=True)
    _warm_up(twins)
    replay = capture(twins.optimizer.step)
    grads = [param.grad for param in twins.params]
    twins.params[0].grad = twins.host_params[0].grad = None  # another plan
    twins.step()
    for param, grad in zip(twins.params, grads, strict=True):
        param.grad = grad
    for step in range(1, 4):
        _replay(twins, replay, step)

    twins.check()
