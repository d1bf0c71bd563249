"""Test that Triton's kernels step shards: sums are completed between a sweep and its finish."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed import pair
from distributed.cases import shard
from distributed.collectives import count_collectives
from distributed.sharded_and_whole import OPTIONS, Comparison, optimizer_class, placement_of
from interpreter import inside_interpreter, outside_interpreter, run_inside
from torch import distributed, nn

import optgen
from optgen import use_lowering

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

SHAPES: tuple[tuple[tuple[int, ...], int | None], ...] = (
    ((8, 4), 0),
    ((5, 3), 0),  # unevenly
    ((1, 6), 0),  # one rank has nothing
    ((3, 5), 1),
    ((7,), 0),
    ((3, 4, 5), 2),
    ((5, 3), None),  # whole on both ranks
    ((60, 70), 0),  # more than a block
)
VECTORS = tuple(((size,), 0) for size in (7, 1, 3000, 64))
CASES: dict[str, Any] = {
    "LAMB": SHAPES,
    "LARS": SHAPES,
    "StableSPAM": SHAPES,
    "NovoGrad": SHAPES,
    "Adafactor": VECTORS,  # numel of the whole parameter
    "Peaks": VECTORS,  # maxima
    "Ragged": VECTORS,  # sums and maxima
}


@outside_interpreter
def test_in_tritons_interpreter() -> None:
    run_inside(__file__)


def _errors(rank: int, name: str, shapes: Any) -> list[float]:
    """Return the errors of float64 and float32 training, in units of their bounds."""
    results = []
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        comparison = Comparison(optimizer_class(name), OPTIONS[name], shapes, dtype)
        for number in range(3):
            comparison.step("fused_triton", without_grad=number if number else None)
        results.append(comparison.error() / bound)
    return results


@inside_interpreter
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
        with pytest.raises(RuntimeError) as caught:
            optimizer_class("Adafactor")([matrix]).step()
    return explained, str(caught.value), counts


@inside_interpreter
def test_explain_says_so_and_one_collective_completes_the_sums_of_all_tensors() -> None:
    for explained, error, counts in pair.run(_explained_and_collectives):
        reason = "phase by phase with the ranks that hold the other shards"
        line = f"fused Triton: asked for by use_lowering; {reason}"
        assert explained.splitlines() == [f"group 0: {line}", f"group 1: {line}"]
        assert "kernels that reduce rows or columns need whole parameters, and these" in error
        # The consensus, and one collective for the two sums of all tensors.
        assert counts == {"all_reduce": 2}


def _values_around_a_skipped_step(rank: int) -> list[bool]:
    """Take a step with a scaler, then one that an infinity skips; compare with whole parameters."""
    comparison = Comparison(optimizer_class("LAMB"), {}, SHAPES[:4], torch.float64)
    results = []
    for found_inf in (0.0, 1.0):
        for optimizer in (comparison.ours, comparison.reference):
            optimizer.grad_scale = torch.tensor(4.0)
            optimizer.found_inf = torch.tensor(found_inf if optimizer is comparison.ours else 0.0)
        before = [param.detach().to_local().clone() for param in comparison.sharded]
        if found_inf:
            comparison.reference.step = lambda: None
        comparison.step("fused_triton")
        after = [param.detach().to_local() for param in comparison.sharded]
        is_changed = not all(map(torch.equal, before, after))
        results.append(is_changed == (not found_inf) and comparison.error() < 1e-12)
    return results


@inside_interpreter
def test_a_scaler_unscales_shards_and_skips_their_step() -> None:
    assert pair.run(_values_around_a_skipped_step) == [[True, True]] * 2
