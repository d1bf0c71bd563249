"""Test partial sums that many programs fold before a finish adds them up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from lowerings.phased_rules import Oracle, class_of
from small_folds import small_folds
from torch import Tensor

from optgen import use_lowering
from optgen.runtime.fused_triton import folds
from optgen.runtime.fused_triton.folds import FOLD, PROGRAMS_AT_ONCE, WORTH_A_LAUNCH, chunk_count
from optgen.runtime.fused_triton.launch_kernel import Launcher
from optgen.runtime.fused_triton.launch_options import Shape
from optgen.runtime.fused_triton.workspace import Layout, Workspace, WorkspaceSpec

pytest.importorskip("triton")

SHAPES = ((9000,), (5,), (), (0,), (40, 500), (7, 20, 200), (700, 3, 3))
"""In float64: 18 blocks, few blocks, no block, 12 tiles, 28 tiles of 7 matrices, groups of 128."""


def test_only_many_partial_sums_are_worth_a_launch() -> None:
    assert chunk_count(0, 1) == chunk_count(FOLD, 10**9) == 0
    assert chunk_count(WORTH_A_LAUNCH, 1) == 0
    assert chunk_count(WORTH_A_LAUNCH + 1, 1) == WORTH_A_LAUNCH // FOLD + 1
    assert chunk_count(2 * FOLD, PROGRAMS_AT_ONCE - 1) == 0
    readers = PROGRAMS_AT_ONCE * WORTH_A_LAUNCH // FOLD
    assert chunk_count(2 * FOLD, readers) == 2


def workspace(spec: WorkspaceSpec, block_counts: list[int]) -> Workspace:
    count = len(block_counts)
    layout = Layout([Shape(1, 1, 1)] * count, [], block_counts, [(1,)] * count)
    return Workspace(spec, layout, torch.float32, torch.device("cpu"), False, None)


def test_folded_sums_have_memory_of_their_own_after_the_partial_sums() -> None:
    with small_folds():
        work = workspace(WorkspaceSpec(1, sums=2), [3, 9, 4, 5])
    partials, offsets, counts = (work.shapes[row].tolist() for row in (6, 12, 13))
    assert counts == [3, 3, 4, 2]
    assert partials == [0, 6, 6 + 18, 6 + 18 + 8]
    assert offsets == [0, partials[3] + 10, partials[2], partials[3] + 10 + 6]
    assert work.partials.numel() == offsets[3] + 4


def test_each_chunk_has_a_program_and_tensors_with_few_blocks_have_none() -> None:
    with small_folds():
        work = workspace(WorkspaceSpec(1, sums=1), [3, 9, 4, 5])
    chunks = work.fold_programs()
    assert chunks is not None
    assert chunks.tensor_indices.tolist() == [1, 1, 1, 3, 3]
    assert chunks.first_programs.tolist() == [0, 0, 3, 3]
    assert work.fold_programs(of_groups=True) is None
    assert workspace(WorkspaceSpec(1, sums=1), [3, 9]).fold_programs() is None


def test_a_rule_without_sums_folds_nothing() -> None:
    work = workspace(WorkspaceSpec(1), [10**6])
    assert work.fold_programs() is None


@outside_interpreter
def test_in_tritons_interpreter() -> None:
    run_inside(__file__)


@pytest.fixture
def fold_launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that fold, in the order of their launches."""
    names: list[str] = []
    launch = Launcher.__call__

    def note(self: Launcher, kernel: Any, *args: Any, **options: Any) -> None:
        names.extend([kernel.__name__] if "_fold" in kernel.__name__ else [])
        launch(self, kernel, *args, **options)

    monkeypatch.setattr(Launcher, "__call__", note)
    return names


def drawn(shapes: Any, seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


@inside_interpreter
@pytest.mark.parametrize(
    ("name", "kernels"), [("LAMB", 1), ("Adafactor", 3), ("CAME", 1), ("Ragged", 5), ("Peaks", 2)]
)
def test_folded_sums_and_maxima_agree_with_the_oracle(
    name: str, kernels: int, tmp_path: Path, fold_launches: list[str]
) -> None:
    shapes = [s for s in SHAPES if len(s) == 2] if name == "CAME" else SHAPES
    params = [tensor.requires_grad_() for tensor in drawn(shapes, 0)]
    oracle = Oracle(name, params)
    optimizer = class_of(name, tmp_path)([{"params": params}])
    with small_folds(), use_lowering("fused_triton"):
        for step in range(2):
            for param, grad in zip(params, drawn(shapes, step + 1), strict=True):
                param.grad = grad
            oracle.step(optimizer.param_groups, params)
            optimizer.step()
    assert oracle.largest_error(params, optimizer) < 1e-14
    assert len(set(fold_launches)) == kernels, fold_launches


@inside_interpreter
def test_the_bits_of_a_folded_sum_do_not_depend_on_other_tensors(tmp_path: Path) -> None:
    cls = class_of("LAMB", tmp_path)
    (alone,) = drawn([(9000,)], 0, torch.float32)
    beside = [t.requires_grad_() for t in drawn([(9000,), (7000,), (3,)], 0, torch.float32)]
    for params in ([alone.requires_grad_()], beside):
        for param, grad in zip(
            params, drawn([p.shape for p in params], 1, torch.float32), strict=True
        ):
            param.grad = grad
        with small_folds(), use_lowering("fused_triton"):
            cls(params).step()
    assert torch.equal(alone, beside[0])


@inside_interpreter
def test_without_many_partial_sums_nothing_is_folded(
    tmp_path: Path, fold_launches: list[str]
) -> None:
    assert folds.WORTH_A_LAUNCH == 32 * folds.FOLD
    (param,) = (tensor.requires_grad_() for tensor in drawn([(9000,)], 0))
    param.grad = torch.ones_like(param)
    with use_lowering("fused_triton"):
        class_of("LAMB", tmp_path)([param]).step()
    assert fold_launches == []
