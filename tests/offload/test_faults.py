"""Test faults of the device, of the host, and of the program around: none hangs or is silent."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from offload.scripts import loss, network
from offload.training import (
    BATCHES,
    assert_equal,
    backward,
    offloaded,
    pinned_bytes,
    stalled,
    train,
    weights,
)
from torch import Tensor, nn

from optgen.offloading import OffloadError, worker
from optgen.offloading.bucket_kernel import BucketKernel
from optgen.offloading.bucket_pipeline import Pipeline
from optgen.offloading.worker import Worker

MODES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "forward": {"hide": "forward"},
    "leave": {"gradients": "leave", "clip_norm": None},
    "backward": {"gradients": "leave", "clip_norm": None, "hide": "backward"},
}


def made(mode: str, **options: Any) -> tuple[nn.Module, Any]:
    model = network("sim")
    module = {"module": model} if mode == "forward" else {}
    return model, offloaded(model, **MODES[mode], **module, **options)


def steps_again(model: nn.Module, optimizer: Any, saved: Any) -> None:
    """Load a checkpoint, and check that training goes on as it would have."""
    optimizer.load_state_dict(saved[1])
    for param, value in zip(model.parameters(), saved[0], strict=True):
        param.data.copy_(value)
        param.grad = None
    optimizer.zero_grad()
    train(model, optimizer, 2, first=1)
    other = network("sim")
    with offloaded(other) as undisturbed:
        train(other, undisturbed)

    assert_equal(model, other)


def step_and_wait(optimizer: Any, seconds: float = 0.0) -> None:
    optimizer.step()
    optimizer.synchronize()
    time.sleep(seconds)


def after_a_step(model: nn.Module, optimizer: Any) -> Any:
    train(model, optimizer, 1)
    return weights(model), copy.deepcopy(optimizer.state_dict())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("copies", [0, 3, 9])
def test_a_copy_fails(copies: int, mode: str, sim: Any) -> None:
    """The device fails after some copies, in the step or in a backward pass that copies."""
    model, optimizer = made(mode)
    saved = after_a_step(model, optimizer)
    value = loss(model, BATCHES[1].to("sim"))
    torch.accelerator.synchronize()
    with pytest.raises(RuntimeError, match="a copy failed, as the test asked"):
        fail_in_step(optimizer, value, sim, copies, "gradients" in MODES[mode])
    sim.configure(fail_after=-1)
    sim.reset()
    if "gradients" not in MODES[mode]:  # else an operator of the backward pass told the error
        for call in (optimizer.step, optimizer.state_dict, optimizer.synchronize):
            with pytest.raises(OffloadError, match=r"in the stage '.*cop.* at .*(weight|bias)"):
                call()
    steps_again(model, optimizer, saved)


def fail_in_step(optimizer: Any, value: Tensor, sim: Any, copies: int, in_backward: bool) -> None:
    if in_backward:
        sim.configure(fail_after=copies)
    value.backward()
    if not in_backward:
        torch.accelerator.synchronize()
        sim.configure(fail_after=copies)
    step_and_wait(optimizer)


@pytest.mark.parametrize("mode", ["nothing", "forward"])
@pytest.mark.parametrize("calls", [0, 2])
def test_the_kernel_raises(
    calls: int, mode: str, sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raises after some calls, with some buckets stepped."""
    model, optimizer = made(mode)
    saved = after_a_step(model, optimizer)
    backward(model, 1)
    run, numbers = BucketKernel.run, itertools.count()
    calls = min(calls, len(optimizer._stepper.host.buckets) - 1)
    with monkeypatch.context() as patch:
        patch.setattr(
            BucketKernel, "run", lambda *args: run(*args) if next(numbers) < calls else 1 / 0
        )
        with pytest.raises(OffloadError) as caught:
            step_and_wait(optimizer)

    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "in the stage 'kernel'" in str(caught.value)
    if mode == "forward":
        with pytest.raises(OffloadError, match="in the stage 'kernel'"):
            backward(model)
    steps_again(model, optimizer, saved)


@pytest.mark.parametrize("mode", MODES)
def test_a_device_that_does_not_answer(mode: str, sim: Any) -> None:
    stalled_step(mode, sim, 1.0)


def stalled_step(mode: str, sim: Any, seconds: float) -> None:
    model, optimizer = made(mode)
    saved = after_a_step(model, optimizer)
    backward(model, 1)
    torch.accelerator.synchronize()
    optimizer.synchronize()
    message = rf"has been in the stage 'cop.*, at .*(weight|bias), for {seconds:g} s"
    with stalled(sim, optimizer, seconds), pytest.raises(OffloadError, match=message):
        step_and_wait(optimizer)
    steps_again(model, optimizer, saved)


def test_a_device_that_does_not_compute_the_norm(sim: Any) -> None:
    model, optimizer = made("nothing", clip_norm=1.0)
    saved = after_a_step(model, optimizer)
    backward(model, 1)
    message = "in the stage 'norm of gradients', at all parameters"
    with stalled(sim, optimizer), pytest.raises(OffloadError, match=message):
        optimizer.step()
    steps_again(model, optimizer, saved)


def test_a_load_into_a_device_that_does_not_answer(sim: Any) -> None:
    """It raises an error in time, and can be tried again."""
    model, optimizer = made("forward")
    saved = after_a_step(model, optimizer)
    backward(model, 1)
    with stalled(sim, optimizer):
        with pytest.raises(OffloadError, match="'copy of gradients"):
            step_and_wait(optimizer)
        with pytest.raises(OffloadError, match="'copy of gradients"):
            optimizer.load_state_dict(saved[1])
    steps_again(model, optimizer, saved)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stage", [0, 3])
def test_an_interrupt(stage: int, mode: str, sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that was interrupted is taken, whatever its stage; `synchronize` waits for it."""
    model, optimizer = made(mode)
    run, enter, stages = Pipeline.run, Worker.enter, itertools.count()

    def interrupted(each: Worker, name: str, tensor: str) -> None:
        if next(stages) == stage:
            os.kill(os.getpid(), signal.SIGINT)
        enter(each, name, tensor)

    def interrupted_run(pipeline: Pipeline, current: Any) -> None:
        patch.setattr(Worker, "enter", interrupted)
        run(pipeline, current)

    backward(model)
    torch.accelerator.synchronize()
    optimizer.synchronize()
    sim.configure(latency=0.02)
    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "run", interrupted_run)
        with pytest.raises(KeyboardInterrupt):
            step_and_wait(optimizer, seconds=10.0)  # a signal may come late
        sim.configure(latency=0)
        optimizer.synchronize()
    optimizer.zero_grad()
    train(model, optimizer, 2, first=1)
    other = network("sim")
    with offloaded(other) as undisturbed:
        train(other, undisturbed)

    assert_equal(model, other)


@pytest.mark.parametrize("mode", ["nothing", "backward"])
def test_a_load_that_fails_heals_nothing(
    mode: str, sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = made(mode)
    saved = after_a_step(model, optimizer)
    wrong = copy.deepcopy(saved[1])
    wrong["param_groups"] *= 2
    with monkeypatch.context() as patch:
        patch.setattr(BucketKernel, "run", lambda *args: 1 / 0)
        with pytest.raises(OffloadError):
            pass_and_step(model, optimizer)
    for _ in range(2):
        with pytest.raises(ValueError, match="parameter group"):
            optimizer.load_state_dict(wrong)
        with pytest.raises(OffloadError, match="in the stage 'kernel'"):
            optimizer.step()
    steps_again(model, optimizer, saved)


def pass_and_step(model: nn.Module, optimizer: Any) -> None:
    backward(model, 1)
    step_and_wait(optimizer)


@pytest.mark.parametrize("by_with", [True, False])
def test_close_tells_the_error_of_the_last_step(
    by_with: bool, sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = made("forward")
    train(model, optimizer, 1)
    backward(model, 1)
    monkeypatch.setattr(BucketKernel, "run", lambda *args: 1 / 0)

    def step_in_with() -> None:
        with optimizer:
            optimizer.step()

    if not by_with:
        optimizer.step()
    with pytest.raises(OffloadError, match="in the stage 'kernel'"):
        step_in_with() if by_with else optimizer.close()
    optimizer.close()  # the error has been told

    assert not optimizer._worker._thread.is_alive()


def test_the_first_error_leaves_a_with_statement(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = made("forward")
    backward(model)
    monkeypatch.setattr(BucketKernel, "run", lambda *args: 1 / 0)

    def step_in_with() -> None:
        with optimizer:
            optimizer.step()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        step_in_with()


@pytest.mark.parametrize("closes", [True, False])
def test_weights_are_waited_for_when_the_optimizer_is_gone(
    closes: bool, sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed or forgotten, however long its last step takes."""
    monkeypatch.setattr(worker, "_JOIN_SECONDS", 0.01)
    model, optimizer = made("forward")
    expected, other = made("nothing")
    backward(model)
    sim.configure(latency=0.02)
    optimizer.step()
    if closes:
        optimizer.close()
    del optimizer
    gc.collect()
    saved = {key: value.cpu() for key, value in model.state_dict().items()}
    sim.configure(latency=0)
    train(expected, other, 1)

    for key, value in expected.state_dict().items():
        assert torch.equal(saved[key], value.cpu())


def test_a_closed_optimizer_says_so(sim: Any) -> None:
    model, optimizer = made("nothing")
    train(model, optimizer, 1)
    optimizer.close()
    optimizer.close()
    with pytest.raises(RuntimeError, match="this offloaded optimizer is closed"):
        optimizer.step()


@pytest.mark.parametrize("mode", MODES)
def test_a_forgotten_optimizer_gives_all_back(mode: str, sim: Any) -> None:
    pinned = pinned_bytes()
    model, optimizer = made(mode)
    train(model, optimizer, 1)
    thread, reference = optimizer._worker._thread, weakref.ref(optimizer)
    del optimizer
    gc.collect()
    thread.join(10)  # the collector may have run in this thread, which then ends by itself
    left = pinned_bytes()

    assert reference() is None
    assert not thread.is_alive()
    assert left == pinned
    backward(model)


SCRIPT = """
import os, sys
import device
device.load()
from offload.scripts import network
from offload.training import backward, offloaded
model = network("sim")
optimizer = offloaded(model, module=model)
backward(model)
device.configure(latency=0.01)
optimizer.step()
{end}
"""
FORK = """
device.configure(latency=0)
optimizer.synchronize()
child = os.fork()
if not child:
    try:
        optimizer.step()
    except RuntimeError as error:
        print(error, flush=True)
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
optimizer.step()
optimizer.synchronize()
"""


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    tests = Path(__file__).parent.parent
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": f"{tests}:{tests.parent}"},
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("end", "code", "output"),
    [
        ("", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("raise SystemExit(4)", 4, ""),
        (FORK, 0, "this offloaded optimizer was made before a fork"),
    ],
    ids=["end", "exit", "raise", "fork"],
)
def test_a_process_ends(end: str, code: int, output: str) -> None:
    """With work queued, or in a child that has no thread."""
    result = run_script(SCRIPT.format(end=end))

    assert (result.returncode, result.stderr) == (code, "")
    assert output in result.stdout
