"""Test when a launch skips Triton's binder: only if the binder would find the same kernel."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from optgen.runtime.fused_triton.launch_kernel import Launcher, _are_alike

pytest.importorskip("triton")

from triton import knobs
from triton.runtime.driver import driver

from benchmarks.triton_aot_compile import TargetDriver
from optgen.generated.sgd import fused_triton as sgd
from optgen.verification.patch_attribute import patch_attribute

MEMORY = torch.zeros(16)
FLAGS = [
    None,
    MEMORY[0],
    MEMORY[4],  # at a multiple of 16 bytes, too
    MEMORY[1],
    torch.zeros((), dtype=torch.float64),
    torch.zeros((), dtype=torch.float64)[None],
]


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_alike_arguments_have_one_compiled_kernel(target: str, tmp_path: Path) -> None:
    with patch_attribute(driver, "_active", TargetDriver(target)), knobs.cache.scope():
        knobs.cache.dir = str(tmp_path)
        compiled = [compile_scalars(flag) for flag in FLAGS]
    for i, first in enumerate(FLAGS):
        for j, second in enumerate(FLAGS):
            assert _are_alike(first, second) is (compiled[i] is compiled[j]), (i, j)


def compile_scalars(found_inf: Any) -> Any:
    """Return what Triton's binder finds for the scalar program of SGD."""
    table, hypers = torch.zeros(5, 1, dtype=torch.int64), torch.zeros(1, 6, dtype=torch.float64)
    arguments = (table, hypers, torch.zeros(1, 4), found_inf, 1)
    return sgd.sgd_scalars.run(*arguments, grid=(1,), warmup=True, num_warps=1)


class Compiled:
    """A compiled kernel that lists its launches."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args: self.launches.append((grid, *args))


class Kernel:
    """A kernel whose binder lists its launches."""

    arg_names = ("table", "count", "found_inf", "BLOCK")

    def __init__(self) -> None:
        self.pre_run_hooks: list[Any] = []
        self.bound: list[tuple[Any, ...]] = []
        self.compiled = Compiled()

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def bind(*args: Any, **options: Any) -> Compiled:
            self.bound.append((grid, *args, options))
            return self.compiled

        return bind


TABLE = torch.zeros(4)
CALL = (3, (TABLE, 2, None), {"BLOCK": 8, "num_warps": 4})


def launch_counts(*calls: Any) -> tuple[int, int]:
    """Return how many of some launches the binder saw, and how many were direct."""
    kernel, launch = Kernel(), Launcher()
    for programs, args, options in calls:
        launch(kernel, programs, *args, **options)
    return len(kernel.bound), len(kernel.compiled.launches)


def test_equal_launches_are_direct() -> None:
    kernel, launch = Kernel(), Launcher()
    for _ in range(3):
        launch(kernel, 3, TABLE, 2, None, BLOCK=8, num_warps=4)

    assert kernel.bound == [((3,), TABLE, 2, None, {"BLOCK": 8, "num_warps": 4})]
    assert kernel.compiled.launches == [((3, 1, 1), TABLE, 2, None, 8)] * 2


@pytest.mark.parametrize(
    "other",
    [
        (4, (TABLE, 2, None), {"BLOCK": 8, "num_warps": 4}),
        (3, (TABLE, 3, None), {"BLOCK": 8, "num_warps": 4}),
        (3, (TABLE, 2, torch.zeros(())), {"BLOCK": 8, "num_warps": 4}),
        (3, (torch.zeros(5)[1:], 2, None), {"BLOCK": 8, "num_warps": 4}),
        (3, (TABLE.double(), 2, None), {"BLOCK": 8, "num_warps": 4}),
        (3, (TABLE, 2, None), {"BLOCK": 16, "num_warps": 4}),
        (3, (TABLE, 2, None), {"BLOCK": 8, "num_warps": 8}),
        (3, (TABLE, 2), {"BLOCK": 8, "num_warps": 4, "found_inf": None}),
    ],
)
def test_a_launch_that_differs_goes_through_the_binder(other: Any) -> None:
    assert launch_counts(CALL, other, CALL) == (3, 0)


def test_a_new_tensor_of_the_same_kind_needs_no_binder() -> None:
    flags = [torch.zeros(()) for _ in range(3)]
    kernel, launch = Kernel(), Launcher()
    for flag in flags:
        launch(kernel, 3, TABLE, 2, flag, BLOCK=8)

    assert kernel.compiled.launches == [((3, 1, 1), TABLE, 2, flag, 8) for flag in flags[1:]]


def test_a_kernel_that_is_compiled_ahead_goes_through_the_binder() -> None:
    """Triton's `FutureKernel` has the methods of a compiled kernel, but no `[grid]`."""
    kernel, launch = Kernel(), Launcher()
    kernel.compiled = SimpleNamespace(__getitem__=kernel.compiled.__getitem__)  # type: ignore[assignment]
    for _ in range(2):
        launch(kernel, 3, TABLE, 2, None, BLOCK=8)

    assert len(kernel.bound) == 2


def test_hooks_and_empty_grids_go_through_the_binder() -> None:
    kernel, launch = Kernel(), Launcher()
    launch(kernel, 3, TABLE, 2, None, BLOCK=8)
    kernel.pre_run_hooks.append(print)
    launch(kernel, 3, TABLE, 2, None, BLOCK=8)

    assert (len(kernel.bound), kernel.compiled.launches) == (2, [])
    assert launch_counts(*[(0, *CALL[1:])] * 2) == (2, 0)


def recorded_launcher(*kernels: Kernel) -> Launcher:
    """Return a launcher that has recorded an update which launches these kernels."""
    launch = Launcher()

    def update() -> None:
        for number, kernel in enumerate(kernels):
            launch(kernel, 3, TABLE, number, None, BLOCK=8)

    launch.record(update)
    return launch


def test_a_recorded_update_is_repeated_without_the_binder() -> None:
    first, second = Kernel(), Kernel()
    launch = recorded_launcher(first, second, first)

    assert launch.repeat()
    assert first.compiled.launches == [
        ((3, 1, 1), TABLE, 0, None, 8),
        ((3, 1, 1), TABLE, 2, None, 8),
    ]
    assert second.compiled.launches == [((3, 1, 1), TABLE, 1, None, 8)]
    assert (len(first.bound), len(second.bound)) == (2, 1)


def test_a_repeated_update_has_the_tensors_of_the_recorded_one() -> None:
    kernel, launch, other = Kernel(), Launcher(), torch.zeros(4)
    launch(kernel, 3, TABLE, 2, None, BLOCK=8)  # bound, before the record

    def update() -> None:
        for table in (other, TABLE):
            launch(kernel, 3, table, 2, None, BLOCK=8)

    launch.record(update)
    assert launch.repeat()
    assert [call[1] is other for call in kernel.compiled.launches] == [True, False] * 2


def test_an_update_is_not_repeated_before_it_was_recorded_or_with_hooks() -> None:
    kernel, other = Kernel(), Kernel()
    launch = recorded_launcher(kernel, other)
    other.pre_run_hooks.append(print)

    assert not Launcher().repeat()
    assert not launch.repeat()
    assert kernel.compiled.launches == []


def test_an_update_that_failed_or_was_bound_by_triton_is_not_repeated() -> None:
    kernel = Kernel()
    kernel.pre_run_hooks.append(print)
    launch = recorded_launcher(Kernel())

    def fail() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        launch.record(fail)

    assert not launch.repeat()
    assert not recorded_launcher(Kernel(), kernel).repeat()
