"""Run every test of this folder on two emulated CUDA devices; `make test-cuda-host` does so.

A fault of a test, such as a kernel that reads freed memory, fails the test at its end.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from cuda_host import kernels_on_cpu
from cuda_host.emulated_runtime import Schedule, set_schedule, take_faults
from cuda_host.operations_on_cpu import OperationsOnCpu, printable_tensors

kernels_on_cpu.install()


@pytest.fixture(params=list(Schedule), ids=lambda each: each.name.lower())
def schedule(request: pytest.FixtureRequest) -> Schedule:
    """When streams run their work: late, at once, or in a random order."""
    return Schedule(request.param)


@pytest.fixture(autouse=True)
def operations(request: pytest.FixtureRequest) -> Iterator[OperationsOnCpu]:
    """Run the test on emulated devices, whose streams run late or by the fixture `schedule`."""
    chosen = (
        request.getfixturevalue("schedule") if "schedule" in request.fixturenames else Schedule.LATE
    )
    take_faults()
    set_schedule(chosen, seed=1)
    with OperationsOnCpu() as mode, printable_tensors():
        yield mode
        torch.cuda.synchronize()
    set_schedule(Schedule.LATE)
    torch.cuda.set_device(0)
    assert take_faults() == []
