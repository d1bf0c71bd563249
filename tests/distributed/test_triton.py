"""Test that Triton's kernels step shards: sums are completed between a sweep and its finish."""

from __future__ import annotations

import math
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from distributed import pair
from distributed.cases import difference, shard
from distributed.collectives import count_collectives
from distributed.sharded_and_whole import (
    OPTIONS,
    Comparison,
    optimizer_class,
    placement_of,
    states_that_differ,
)
from interpreter import inside_interpreter, outside_interpreter, run_inside
from torch import distributed, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import optgen
from optgen import use_lowering
from optgen.runtime.backends import backend
from optgen.runtime.fused_triton import compilation
from optgen.runtime.fused_triton.compilation import compile_kernels
from optgen.runtime.fused_triton.sharded_step import update_of_shards

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

SHAPES: tuple[tuple[tuple[int, ...], int | None], ...] = (
    ((8, 4), 0),
    ((5, 3), 0),  # unevenly
    ((1, 6), 0),  # one rank has nothing
    ((3, 5), 1),
    ((6, 1), 1),  # one rank has all rows, without elements
    ((7,), 0),
    ((3, 4, 5), 0),  # matrix by matrix
    ((3, 4, 5), 1),
    ((3, 4, 5), 2),
    ((5, 3), None),  # whole on both ranks
    ((20, 140), 0),  # tiles that share rows and columns
    ((20, 140), 1),
)
MORE_SHAPES = (
    *SHAPES,
    ((4, 6, 5, 3), 1),  # one of two axes that number matrices
    ((150, 3, 3), 2),  # many matrices in a tile, of which one rank has a column
    ((1, 1), 0),
)
FEW_SHAPES = (((5, 3), 0), ((6, 1), 1), ((4, 6, 5, 3), 1), ((7,), 0), ((20, 140), 1))
"""For rules with maxima, which the interpreter combines element by element."""
MATRICES = tuple(each for each in SHAPES if len(each[0]) == 2)
CASES: dict[str, Any] = {
    "LAMB": SHAPES,
    "LARS": SHAPES,
    "StableSPAM": SHAPES,
    "NovoGrad": SHAPES,
    "Adafactor": MORE_SHAPES,
    "CAME": MATRICES,
    "RowWiseAdagrad": MATRICES,
    "Amos": SHAPES,
    "ReducedScalars": SHAPES,
    "SM3": SHAPES,
    "Peaks": FEW_SHAPES,  # maxima
    "Ragged": FEW_SHAPES,  # sums and maxima
    "Tall": SHAPES,
}


@outside_interpreter
def test_in_tritons_interpreter() -> None:
    run_inside(__file__)


def _errors(rank: int, name: str, shapes: Any) -> list[float]:
    """Return the errors of float64 and float32 training, in units of their bounds."""
    results = []
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        comparison = Comparison(optimizer_class(name), OPTIONS.get(name, {}), shapes, dtype)
        for number in range(3):
            comparison.step("fused_triton", without_grad=number if number else None)
        results.append(comparison.error() / bound)
    return results


@inside_interpreter
@pytest.mark.one_case_in(8)
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_step_as_one_process(name: str) -> None:
    for found in pair.run(_errors, name, CASES[name], limit=120.0):
        assert max(found) <= 1, found


def _explained_and_collectives(rank: int) -> tuple[str, str, Any]:
    mesh = distributed.init_device_mesh("cpu", (2,))
    sizes = [(9,), (700,), (30,)]
    params = [nn.Parameter(shard(torch.ones(size), placement_of(0), mesh)) for size in sizes]
    matrix = nn.Parameter(shard(torch.ones(6, 4), placement_of(0), mesh))
    for param in (*params, matrix):
        param.grad = shard(torch.ones(param.shape), placement_of(0), mesh)
    lamb = optimizer_class("LAMB")([{"params": params[:2]}, {"params": params[2:], "lr": 0.1}])
    with use_lowering("fused_triton"):
        explained = optgen.explain(lamb)
        lamb.step()
        with count_collectives() as counts:
            lamb.step()
        adafactor = optimizer_class("Adafactor")([matrix])
        adafactor.step()
        with count_collectives() as adafactors_counts:
            adafactor.step()
        with pytest.raises(RuntimeError) as caught:
            optimizer_class("Muon")([matrix]).step()
    return explained, str(caught.value), [counts, adafactors_counts]


@inside_interpreter
def test_explain_says_so_and_one_collective_completes_the_sums_of_all_tensors() -> None:
    for explained, error, counts in pair.run(_explained_and_collectives):
        reason = "phase by phase with the ranks that hold the other shards"
        line = f"fused Triton: asked for by use_lowering; {reason}"
        assert explained.splitlines() == [f"group 0: {line}", f"group 1: {line}"]
        assert "matrix ops between kernels need whole parameters, and these" in error
        # The consensus, and one collective for the two sums of all tensors. Adafactor has one for
        # its sums of rows, of columns and of the tensor, and the state, and one for its second sum.
        assert counts == [{"all_reduce": 2}, {"all_reduce": 3}]


def _values_around_a_skipped_step(rank: int, name: str) -> list[bool]:
    """Take a step with a scaler, then one that an infinity skips; compare with whole parameters."""
    comparison = Comparison(optimizer_class(name), {}, SHAPES[:9], torch.float64)
    results = []
    for found_inf in (0.0, 1.0, 0.0):
        for optimizer in (comparison.ours, comparison.reference):
            optimizer.grad_scale = torch.tensor(4.0)
            optimizer.found_inf = torch.tensor(found_inf if optimizer is comparison.ours else 0.0)
        before = [param.detach().to_local().clone() for param in comparison.sharded[:9]]
        take_step = comparison.reference.step
        if found_inf:
            comparison.reference.step = lambda: None
        comparison.step("fused_triton")
        comparison.reference.step = take_step
        after = [param.detach().to_local() for param in comparison.sharded[:9]]
        is_changed = not all(map(torch.equal, before, after))
        results.append(is_changed == (not found_inf) and comparison.error() < 1e-12)
    return results


@inside_interpreter
@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("name", ["LAMB", "Adafactor", "Ragged"])
def test_a_scaler_unscales_shards_and_skips_their_step(name: str) -> None:
    assert pair.run(_values_around_a_skipped_step, name) == [[True] * 3] * 2


@inside_interpreter
@pytest.mark.one_case_in(6)
@pytest.mark.parametrize("name", ["SM3", "Peaks", "Ragged"])
@pytest.mark.parametrize("last", [math.nan, -math.inf], ids=str)
def test_maxima_of_all_ranks_keep_nan_and_infinity(name: str, last: float) -> None:
    for found in pair.run(states_that_differ, optimizer_class(name), SHAPES, "fused_triton", last):
        assert found == []


@inside_interpreter
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Adafactor", "Peaks"])
def test_shards_of_empty_matrices_have_the_states_of_one_process(name: str) -> None:
    shapes = (((3, 0), 0), ((0, 3), 1), ((0, 3), 0), ((2, 0, 3), 0))
    cls = optimizer_class(name)
    for found in pair.run(states_that_differ, cls, shapes, "fused_triton", None):
        assert found == []


def _rehearsed(rank: int) -> tuple[list[str], bool]:
    """Return the kernels that a rehearsal of a step compiles, and if it changes nothing."""
    comparison = Comparison(optimizer_class("Adafactor"), {}, SHAPES[:6], torch.float64)
    comparison.step("fused_triton")
    states = [value for each in comparison.ours.state.values() for value in each.values()]
    tensors = [t.to_local() for t in [*comparison.sharded, *states] if isinstance(t, DTensor)]
    before = [tensor.detach().clone() for tensor in tensors]
    kernels: list[str] = []

    def note(self: Any, kernel: Any, programs: int, *args: Any, **options: Any) -> None:
        kernels.append(kernel.fn.__name__)

    kept_by_key = backend("fused_triton")._kept[comparison.ours]
    with mock.patch.object(compilation._Rehearsal, "launch", note):
        for kept in (kept for key, kept in kept_by_key.items() if key is not None):
            step_buckets = kept.find(bool)
            update = partial(update_of_shards, step_buckets._module.update)
            for bucket in step_buckets.buckets:
                compile_kernels(update, bucket, [comparison.ours.param_groups[0]])
    return kernels, all(map(torch.equal, tensors, before))


@inside_interpreter
def test_a_rehearsal_has_all_kernels_and_changes_no_tensor() -> None:
    for kernels, is_unchanged in pair.run(_rehearsed):
        assert is_unchanged
        phases = ["scalars", "step1", "fold1", "finish1", "step2", "fold2", "finish2", "step3"]
        assert {f"adafactor_factored_{phase}" for phase in phases} < set(kernels)
        assert "fold_lines" in kernels


MESHES: dict[tuple[int, ...], tuple[str, ...]] = {
    (3,): ("0", "1"),
    (2, 2): ("01", "10", "00", "R1", "0R"),
}
"""Meshes, and for each of their dimensions the axis that it shards; R if it replicates."""


def _errors_on_a_mesh(rank: int, name: str, mesh_shape: tuple[int, ...]) -> list[float]:
    """Return the errors of two steps of shards, for each way to place them on a mesh."""
    mesh, results = distributed.init_device_mesh("cpu", mesh_shape), []
    cls, options = optimizer_class(name), OPTIONS[name]
    for axes in MESHES[mesh_shape]:
        placements = [Replicate() if axis == "R" else Shard(int(axis)) for axis in axes]
        place = partial(distribute_tensor, device_mesh=mesh, placements=placements)
        sizes = ((5, 3), (4, 70), (3, 4, 6), (1, 2))
        alone = [nn.Parameter(torch.randn(size, dtype=torch.float64)) for size in sizes]
        sharded = [nn.Parameter(place(each.detach(), src_data_rank=None)) for each in alone]
        ours, reference = cls(sharded, **options), cls(alone, **options)
        for number in range(2):
            for index, (shards, whole) in enumerate(zip(sharded, alone, strict=True)):
                grad = torch.randn_like(whole)
                is_none = index == number + 1
                whole.grad = None if is_none else grad
                shards.grad = None if is_none else place(grad, src_data_rank=None)
            with use_lowering("fused_triton"):
                ours.step()
            with use_lowering("forloop"):
                reference.step()
        for shards, whole in zip(sharded, alone, strict=True):
            results.append(difference(shards.detach(), whole.detach()))
            expected = reference.state[whole]
            results += [difference(ours.state[shards][key], expected[key]) for key in expected]
    return results


@inside_interpreter
@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("mesh_shape", MESHES, ids=str)
def test_shards_on_a_mesh_step_as_one_process(mesh_shape: tuple[int, ...]) -> None:
    with pair.processes(math.prod(mesh_shape)) as run:
        for name in ("Adafactor", "Ragged"):
            for errors in run(_errors_on_a_mesh, name, mesh_shape):
                assert max(errors) <= 1e-12, (name, errors)
