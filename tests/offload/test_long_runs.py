"""Test what shows only after many steps or many faults: growth, and rare orders of events.

`pytest --thorough` runs a part of the cases. `pytest --every-case tests/offload/test_long_runs.py`
runs 20,000 steps in each mode, and each kind of fault of `test_faults.py` 100 times.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from offload import test_faults as faults
from offload.schedules import drawn
from offload.scripts import network
from offload.test_faults import MODES
from offload.training import OPTIONS, offloaded, pinned_bytes, train, weights
from torch import Tensor, nn

import optgen

Patch = pytest.MonkeyPatch
STEPS, WARM_UP = 20_000, 2_000


def a_copy_fails(rng: random.Random, sim: Any, patch: Patch) -> None:
    faults.test_a_copy_fails(rng.choice((0, 1, 3, 5, 9)), rng.choice([*MODES]), sim)


def the_worker_raises(rng: random.Random, sim: Any, patch: Patch) -> None:
    mode = rng.choice(("nothing", "forward"))
    faults.test_the_kernel_raises(rng.randrange(3), mode, sim, patch)


def the_device_stalls(rng: random.Random, sim: Any, patch: Patch) -> None:
    faults.stalled_step(rng.choice([*MODES]), sim, seconds=0.25)


def too_little_can_be_pinned(rng: random.Random, sim: Any, patch: Patch) -> None:
    """Nothing is left behind, and with more room the same optimizer can be made."""
    needed, before = 2 * OPTIONS["slots"] * OPTIONS["bucket_bytes"], pinned_bytes()
    model, values = network("sim"), weights(network())
    sim.configure(pinned_limit=before + rng.randrange(needed))
    with pytest.raises(MemoryError, match=f"cannot pin {needed:,} bytes, which are .* slots"):
        offloaded(model)
    assert pinned_bytes() == before
    assert all(map(torch.equal, weights(model), values))
    sim.configure(pinned_limit=before + needed)
    with offloaded(model) as optimizer:
        train(model, optimizer, 1)


def an_interrupt(rng: random.Random, sim: Any, patch: Patch) -> None:
    faults.test_an_interrupt(rng.randrange(4), rng.choice([*MODES]), sim, patch)


def the_optimizer_is_let_go(rng: random.Random, sim: Any, patch: Patch) -> None:
    faults.test_a_forgotten_optimizer_gives_all_back(rng.choice([*MODES]), sim)


FAULTS = (
    a_copy_fails,
    the_worker_raises,
    the_device_stalls,
    too_little_can_be_pinned,
    an_interrupt,
    the_optimizer_is_let_go,
)


@pytest.fixture
def _ends() -> Iterator[None]:
    """End the process with a trace of all threads if a test hangs."""
    faulthandler.dump_traceback_later(600, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.thorough
@pytest.mark.one_case_in(1, thorough=20)
@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: each.__name__)
@pytest.mark.usefixtures("_ends")
def test_a_fault_at_many_times(
    fault: Callable[..., None], seed: int, sim: Any, monkeypatch: Patch
) -> None:
    """Each time with other delays, another ring, and in another mode."""
    settings, options = drawn(seed)
    sim.configure(**settings)
    for key, value in options.items():
        monkeypatch.setitem(OPTIONS, key, value)
    fault(random.Random(seed), sim, monkeypatch)


MANY_ENDS = """
import os, sys, tempfile, time
import device
from offload.scripts import network
from offload.training import backward, offloaded
from optgen.offloading.host_rule import offload_rule
import torch._dynamo  # once for all children, as the rule: hooks of modules import it
offload_rule("adamw", clips=False)
longest, codes = 0.0, (0, 3, 4, 0)
for number in range({count}):
    errors, began = tempfile.TemporaryFile(), time.monotonic()
    if not (child := os.fork()):
        os.dup2(errors.fileno(), 2)
        break
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    errors.seek(0)
    assert (code, errors.read()) == (codes[number % 4], b""), number
    longest = max(longest, time.monotonic() - began)
else:
    print(f"{count} ends, the longest {{longest:.2f}} s")
    sys.exit()
device.load()
model = network("sim")
leave = {{"gradients": "leave", "clip_norm": None}}
modes = ({{"module": model}}, {{}}, {{**leave, "module": model}})
optimizer = offloaded(model, **modes[number % 3])
device.configure(latency=0.002 * (number % 5))
backward(model)
optimizer.step()
if number % 4 == 1:
    sys.exit(3)
if number % 4 == 2:
    raise SystemExit(4)
if number % 4 == 3:
    backward(model)
    optimizer.step()
"""
MANY_FORKS = """
import os, sys, time
import device
device.load()
from offload.scripts import network
from offload.training import backward, offloaded
model = network("sim")
optimizer = offloaded(model, module=model)
calls = (optimizer.step, optimizer.synchronize, lambda: optimizer.load_state_dict({{}}))
longest = 0.0
for number in range({count}):
    device.configure(latency=0.001 * (number % 4))
    backward(model)
    optimizer.step()
    began, child = time.monotonic(), os.fork()
    if not child:
        messages = set()
        for call in calls:
            try:
                call()
            except RuntimeError as error:
                messages.add(str(error).split(", and")[0])
        optimizer.close()
        is_right = messages == {{"this offloaded optimizer was made before a fork"}}
        os._exit(3 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    longest = max(longest, time.monotonic() - began)
optimizer.synchronize()
print(f"{count} forks, the longest {{longest:.2f}} s")
"""


@pytest.mark.thorough
@pytest.mark.parametrize("script", [MANY_ENDS, MANY_FORKS], ids=["ends", "forks"])
@pytest.mark.usefixtures("_ends")
def test_many_processes_end(script: str) -> None:
    """Each with work queued, or in a child that has no thread."""
    count = 100 if os.environ.get("OPTGEN_TEST_EVERY_CASE") == "1" else 8
    result = faults.run_script(script.format(count=count))

    assert (result.returncode, result.stderr) == (0, "")
    assert f"{count} " in result.stdout


def held() -> tuple[int, int]:
    """Return Python's blocks of memory, and all bytes that are touched and not free in the heap."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return sys.getallocatedblocks(), 1024 * int(status.split("RssAnon:")[1].split()[0])


class Small(nn.Module):
    """A model whose step costs little: one operator."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(256, device="sim"))
        self.gradient = torch.ones(256, device="sim")

    def forward(self) -> Tensor:
        return self.weight * self.gradient


def take_steps(model: Small, optimizer: Any, count: int) -> None:
    for index in range(count):
        model().backward(model.gradient)
        optimizer.step()
        optimizer.zero_grad()
        if index % 1000 == 0:
            gc.collect()  # else cycles fill the heap up to some size, now or later
    optimizer.synchronize()
    torch.accelerator.synchronize()


@pytest.mark.thorough
@pytest.mark.one_case_in(1, thorough=4)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("_ends")
def test_nothing_grows(mode: str, sim: Any) -> None:
    held()  # another optimizer's ring would end its life in between
    sim.reset_counts()
    model = Small()
    options = {**MODES[mode], **({"module": model} if mode == "forward" else {})}
    with optgen.offload("adamw", model.parameters(), **OPTIONS, **options) as optimizer:
        take_steps(model, optimizer, WARM_UP)
        counts, before = sim.counts(), held()
        take_steps(model, optimizer, STEPS - WARM_UP)

        # A few freed blocks may be kept for other streams.
        grown = {key: count - counts[key] for key, count in sim.counts().items()}
        assert max(grown["device"], grown["device_peak"]) < 1 << 16
        assert grown["pinned"] == grown["pinned_peak"] == 0
        blocks, memory = (now - then for now, then in zip(held(), before, strict=True))
        assert blocks < 1_000
        assert memory < 8 << 20  # the heap jumps by 4 MiB once, after any number of steps
