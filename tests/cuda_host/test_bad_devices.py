"""Test that what is wrong on a device ends in one clear message, with nothing half-written.

If Triton cannot compile, a step takes foreach. If memory is short, foreach could stop half-way,
since it needs more: so the step raises an error and has changed nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_host.emulated_runtime import full_devices
from cuda_host.operations_on_cpu import OperationsOnCpu
from cuda_host.twins import Twins, draw
from triton import knobs

import optgen
import optgen.optim
from optgen.generated.averaging.ema import ema
from optgen.runtime.backends import backend

_MATRICES = ((24, 24), (40, 30))


@contextmanager
def broken_assembler(folder: Path, kernel: str, module: str) -> Iterator[None]:
    """Let ptxas fail for one kernel; let Triton compile all kernels of a module anew."""
    real = knobs.nvidia.ptxas.path
    broken = folder / "ptxas"
    broken.write_text(
        f'#!/bin/sh\nif grep -qs "entry {kernel}(" -- "$@"; then\n'
        f'echo "no such device"; exit 1; fi\nexec {real} "$@"\n'
    )
    broken.chmod(0o755)
    kernels = [each for each in vars(import_module(module)).values() if hasattr(each, "warmup")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_PTXAS_PATH", str(broken))
        patch.setenv("TRITON_CACHE_DIR", str(folder / "cache"))
        patch.setattr(backend("fused_triton"), "_why_refused", {})
        for each in kernels:
            each.device_caches.clear()
        yield
    for each in kernels:
        each.device_caches.clear()


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("Adagrad", "adagrad_scalars"),
        ("Adagrad", "adagrad_step"),
        ("Muon", "muon_step2"),
        ("LAMB", "lamb_finish1"),
        ("Prodigy", "prodigy_step2"),
    ],
)
def test_a_kernel_does_not_compile(name: str, kernel: str, tmp_path: Path) -> None:
    cls = getattr(optgen.optim, name)
    with broken_assembler(tmp_path, kernel, f"{cls.lowerings}.fused_triton"):
        twins = Twins(cls, _MATRICES)
        with pytest.warns(UserWarning, match=f"cannot compile {kernel}: (?s:.*)") as warned:
            twins.train(1)
        twins.train(2, first=1)  # says no more

        assert len(warned) == 1
        assert f"foreach: Triton cannot compile {kernel}" in optgen.explain(twins.optimizer)
        twins.check()


def test_a_kernel_that_was_asked_for_does_not_compile(tmp_path: Path) -> None:
    with broken_assembler(tmp_path, "adagrad_step", "optgen.generated.adagrad.fused_triton"):
        twins = Twins(optgen.optim.Adagrad, fused=True)
        before = [param.clone() for param in twins.params]
        twins.give_gradients(0)
        with (
            pytest.warns(UserWarning, match="cannot compile adagrad_step"),
            pytest.raises(RuntimeError, match="cannot take a step: Triton cannot compile"),
        ):
            twins.optimizer.step()

        assert all(map(torch.equal, before, twins.params))
        assert all(each["step"] == 0 for each in twins.optimizer.state.values())


def test_a_list_function_does_not_compile(tmp_path: Path) -> None:
    with broken_assembler(tmp_path, "ema_step", "optgen.generated.averaging.ema.fused_triton"):
        average, param = draw((40, 30), 0), draw((40, 30), 1)
        device_average = average.cuda()
        with pytest.warns(UserWarning, match="cannot compile ema_step"):
            ema([device_average], [param.cuda()], decay=0.5)
        ema([average], [param], decay=0.5)

        torch.testing.assert_close(device_average.cpu(), average, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["AdamW", "Adafactor", "LAMB", "Muon"])
def test_every_allocation_of_a_first_step_may_fail(name: str, operations: OperationsOnCpu) -> None:
    cls = getattr(optgen.optim, name)
    num_failed = 0
    while True:
        twins = Twins(cls, ((8, 6), (5, 5)))
        before = [param.clone() for param in twins.params]
        twins.give_gradients(0)
        if _step_with_allocations(twins, num_failed, operations):
            break
        num_failed += 1
        assert all(map(torch.equal, before, twins.params))
        assert all(float(each.get("step", 0)) == 0 for each in twins.optimizer.state.values())
        twins.step()
        twins.check()

    assert num_failed > 3


def _step_with_allocations(twins: Twins, count: int, operations: OperationsOnCpu) -> bool:
    """Take a step in which only some allocations succeed; tell whether that was enough."""
    remaining = iter(range(count))

    def allocate() -> None:
        if next(remaining, None) is None:
            raise torch.OutOfMemoryError("CUDA out of memory")

    operations.before_allocation = allocate
    try:
        twins.optimizer.step()
    except torch.OutOfMemoryError:
        return False
    finally:
        operations.before_allocation = lambda: None
    return True


def test_a_full_device_is_told_with_the_way_out() -> None:
    twins = Twins(optgen.optim.SGD, ((40, 30), (1 << 19,)))  # SGD has no states
    before = [param.clone() for param in twins.params]
    twins.give_gradients(0)
    with full_devices():
        held = _all_free_memory()
        with pytest.raises(torch.OutOfMemoryError) as raised:
            twins.optimizer.step()
    del held

    assert "Nothing has been updated" in "".join(raised.value.__notes__)
    assert all(map(torch.equal, before, twins.params))
    twins.step()
    twins.check()


def _all_free_memory() -> list[torch.Tensor]:
    """Allocate the smallest blocks of the device until there are no more."""
    held = []
    with suppress(torch.OutOfMemoryError):
        while True:
            held.append(torch.empty(64, device="cuda"))
    return held


_STEP = """
import warnings

import torch

from cuda_host import kernels_on_cpu
from cuda_host.emulated_runtime import take_faults
from cuda_host.operations_on_cpu import OperationsOnCpu
import optgen.optim

kernels_on_cpu.install()
with OperationsOnCpu(), warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    param = torch.ones(40, 30, dtype=torch.float64).cuda().requires_grad_()
    param.grad = torch.ones_like(param)
    optimizer = optgen.optim.AdamW([param], lr=0.5, weight_decay=0.0)
    for _ in range(2):
        optimizer.step()
    print([round(each, 6) for each in param.detach().unique().tolist()], take_faults())
    for each in warned:
        print(str(each.message).splitlines()[0])
    print(optgen.explain(optimizer))
"""


@pytest.mark.parametrize("capability", ["3.0"])
def test_a_device_that_no_compiler_knows(capability: str) -> None:
    """Too old a card, and a newer one than Triton's assembler knows."""
    environment = {**os.environ, "EMULATED_CAPABILITY": capability, "PYTHONPATH": ".:tests"}
    result: Any = subprocess.run(
        [sys.executable, "-c", _STEP], env=environment, capture_output=True, text=True, timeout=300
    )

    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "[0.0] []" in lines
    assert sum("will be slow, by foreach" in line for line in lines) == 1
    assert "foreach: Triton cannot compile" in lines[-1]
