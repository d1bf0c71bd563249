"""Test what shows only after many steps or many faults: growth, and rare orders of events.

`pytest --thorough` runs a part of the cases. `pytest --every-case tests/offload/test_long_runs.py`
runs 20,000 steps in each mode, and each fault of `test_faults.py` 100 times.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import inspect
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from offload import test_faults as faults
from offload.schedules import drawn
from offload.test_faults import MODES
from offload.training import OPTIONS
from torch import Tensor, nn

import optgen

STEPS, WARM_UP = 20_000, 2_000
FAULTS: list[tuple[Callable[..., None], dict[str, Any]]] = [
    *(
        (faults.test_a_copy_fails, {"copies": copies, "mode": mode})
        for copies, mode in product((0, 3, 9), MODES)
    ),
    *((faults.test_the_kernel_raises, {"mode": mode}) for mode in ("nothing", "forward")),
    *((faults.test_a_device_that_does_not_answer, {"mode": mode}) for mode in MODES),
    (faults.test_an_interrupt, {}),
    (faults.test_a_closed_optimizer_says_so, {}),
    *((faults.test_a_forgotten_optimizer_gives_all_back, {"mode": mode}) for mode in MODES),
]


def name(fault: Any) -> str:
    function, arguments = fault
    return "-".join([function.__name__.removeprefix("test_"), *map(str, arguments.values())])


@pytest.fixture
def _ends() -> Iterator[None]:
    """End the process with a trace of all threads if a test hangs."""
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.thorough
@pytest.mark.one_case_in(1, thorough=40)
@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("fault", FAULTS, ids=name)
@pytest.mark.usefixtures("_ends")
def test_a_fault_at_many_times(
    fault: Any, seed: int, sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time with other delays, and with another ring."""
    function, arguments = fault
    settings, options = drawn(seed)
    sim.configure(**settings)
    for key, value in options.items():
        monkeypatch.setitem(OPTIONS, key, value)
    if "monkeypatch" in inspect.signature(function).parameters:
        arguments = {**arguments, "monkeypatch": monkeypatch}
    function(sim=sim, **arguments)


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
