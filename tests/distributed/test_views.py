"""Test groups with a view on two ranks: a shard of the parameter is a shard of the view."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from distributed import models, pair
from distributed.cases import difference, shard
from distributed.collectives import count_collectives
from distributed.test_checkpoints import Engine
from spec_files import spec_file
from torch import distributed, nn

import optgen
from optgen import use_lowering
from optgen.optim import Adafactor, AdamW, Muon
from optgen.runtime import newton_schulz
from optgen.verification.compare_with_evaluator import iterate_exactly

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

CASES: dict[str, tuple[str, tuple[int, ...], int, tuple[int, ...]]] = {
    "heads": ("HeadMuon", (48, 16), 0, (12, 4, 16)),
    "split QKV of heads": ("HeadMuon", (48, 16), 0, (4, 3, -1, 16)),
    "row by row": ("HeadMuon", (8, 3, 2), 0, (8, -1)),
    "a batch": ("Adafactor", (48, 16), 0, (12, 4, 16)),
    "a flat convolution": ("Adafactor", (6, 3, 2, 2), 0, (6, -1)),
    "uneven": ("Adafactor", (5, 3, 2, 2), 0, (5, -1)),
    "nothing on one rank": ("Adafactor", (1, 3, 2, 2), 0, (1, -1)),
    "rows of other length": ("Adafactor", (6, 8), 0, (12, 4)),
    "a vector of blocks": ("Adafactor", (48,), 0, (4, 3, 4)),
    "the second axis": ("Adafactor", (3, 8, 5), 1, (3, 4, 10)),
    "columns": ("CAME", (6, 4, 2), 0, (6, 8)),
    "one norm": ("LAMB", (6, 4), 0, (2, 12)),
    "matrices on both ranks": ("Muon", (8, 4, 2), 0, (8, 8)),
    "elementwise": ("AdamW", (5, 4), 0, (2, 10)),
}
"""Rules, shapes, the axis along which they are sharded, and views."""
FUSED_CASES = ("heads", "uneven", "a batch", "the second axis", "elementwise")


def optimizer_class(name: str) -> Any:
    """Return the class of this name, from this package or from a spec of the tests."""
    known = {"Adafactor": Adafactor, "Muon": Muon, "AdamW": AdamW}
    file = "head_muon" if name == "HeadMuon" else name.lower()
    return known[name] if name in known else optgen.load(spec_file(file))


def _placement(axis: int) -> Any:
    from torch.distributed.tensor import Shard

    return Shard(axis)


class _Comparison:
    """Two optimizers with equal views: of sharded parameters, and of equal whole ones."""

    def __init__(self, case: str, dtype: torch.dtype = torch.float64) -> None:
        name, self.shape, self.axis, view = CASES[case]
        self.mesh, self.dtype = distributed.init_device_mesh("cpu", (2,)), dtype
        drawn = [torch.randn(self.shape, dtype=dtype) for _ in range(3)]
        self.alone = [nn.Parameter(value.clone()) for value in drawn]
        self.sharded = [
            nn.Parameter(shard(value, _placement(self.axis), self.mesh)) for value in drawn
        ]
        self.ours, self.reference = (
            optimizer_class(name)([{"params": params, "view": view}], lr=0.01)
            for params in (self.sharded, self.alone)
        )

    def step(self, lowering: str) -> None:
        for alone, part in zip(self.alone, self.sharded, strict=True):
            alone.grad = torch.randn_like(alone)
            part.grad = shard(alone.grad, _placement(self.axis), self.mesh)
        with use_lowering(lowering):
            self.ours.step()
        with use_lowering("fused_cpu" if lowering == "fused_cpu" else "forloop"):
            self.reference.step()

    def error(self) -> float:
        """Return the largest difference of a parameter or a state."""
        results = [0.0]
        for ours, alone in zip(self.sharded, self.alone, strict=True):
            results.append(difference(ours.detach(), alone.detach()))
            states, expected = self.ours.state[ours], self.reference.state[alone]
            assert list(states) == list(expected)
            results += [difference(states[key], value) for key, value in expected.items()]
        return max(results)


def _error_after_training(rank: int, case: str, lowering: str) -> float:
    with mock.patch.object(newton_schulz, "iterate", iterate_exactly):
        comparison = _Comparison(case)
        for _ in range(4):
            comparison.step(lowering)
    return comparison.error()


COMBINATIONS = [(case, "foreach") for case in CASES] + [(case, "fused_cpu") for case in FUSED_CASES]


@pytest.mark.parametrize(("case", "lowering"), COMBINATIONS)
def test_two_ranks_step_as_one_process(case: str, lowering: str) -> None:
    assert max(pair.run(_error_after_training, case, lowering)) <= 1e-12


def _collectives(rank: int, lowering: str) -> Counter[str]:
    comparison = _Comparison("heads", torch.float32)
    comparison.step(lowering)
    with count_collectives() as calls:
        comparison.step(lowering)
    return calls


@pytest.mark.parametrize("lowering", ["foreach", "fused_cpu"])
def test_whole_matrices_need_no_other_rank(lowering: str) -> None:
    """The ranks agree to step, and exchange nothing else."""
    assert pair.run(_collectives, lowering) == [Counter(all_reduce=1)] * 2


def _shapes_and_axes_of_states(rank: int) -> list[tuple[Any, ...]]:
    results = []
    for case in ("a batch", "a flat convolution", "the second axis"):
        comparison = _Comparison(case)
        comparison.ours.init_state()
        states = comparison.ours.state[comparison.sharded[0]]
        for key in ("row_var", "col_var"):
            placement = states[key].placements[0]
            axis = None if placement.is_replicate() else placement.dim
            results.append((tuple(states[key].shape), tuple(states[key].to_local().shape), axis))
    return results


def test_states_of_rows_and_columns_are_sharded_as_the_view() -> None:
    for found in pair.run(_shapes_and_axes_of_states):
        assert found == [
            *(((12, 4, 1), (6, 4, 1), 0), ((12, 1, 16), (6, 1, 16), 0)),
            *(((6, 1), (3, 1), 0), ((1, 12), (1, 12), None)),
            *(((3, 4, 1), (3, 2, 1), 1), ((3, 1, 10), (3, 1, 10), None)),
        ]


REFUSED_VIEWS = [((48, 16), 0, (3, 16, 16)), ((48, 16), 1, (12, 4, 16)), ((5, 4), 0, (10, 2))]


def _errors_of_views(rank: int) -> list[str]:
    mesh = distributed.init_device_mesh("cpu", (2,))
    results = []
    for shape, axis, view in REFUSED_VIEWS:
        param = nn.Parameter(shard(torch.ones(shape), _placement(axis), mesh))
        with pytest.raises(ValueError, match="group 0: ") as caught:
            Adafactor([{"params": [param], "view": view}])
        results.append(str(caught.value))
        AdamW([{"params": [param], "view": view}])
    return results


def test_views_that_do_not_keep_the_shards_are_refused() -> None:
    for found in pair.run(_errors_of_views):
        assert found[0] == (
            "group 0: a parameter of shape (48, 16) has 2 shards along axis 0, which are no shards "
            "of the view (3, 16, 16): axis 0 of the view must be as long as the parameter's, or 2 "
            "must divide both lengths"
        )
        assert found[1].endswith(
            "divide both lengths, and all axes before it must be as long as the parameter's"
        )
        assert "no shards of the view (10, 2)" in found[2]


def _error_of_a_view_on_one_rank(rank: int) -> str:
    comparison = _Comparison("a batch")
    comparison.step("foreach")
    before = [param.detach().to_local().clone() for param in comparison.sharded]
    if rank == 1:
        comparison.ours.param_groups[0]["view"] = (3, 16, 16)
    with pytest.raises((ValueError, RuntimeError)) as caught:
        comparison.step("foreach")
    for param, value in zip(comparison.sharded, before, strict=True):
        assert torch.equal(param.detach().to_local(), value)
    comparison.ours.param_groups[0]["view"] = (12, 4, 16)
    comparison.ours.step()
    return str(caught.value)


def test_neither_rank_steps_if_a_view_does_not_fit_on_one() -> None:
    first, second = pair.run(_error_of_a_view_on_one_rank)
    assert "another rank could not take this step" in first
    assert "no shards of the view (3, 16, 16)" in second


def _adafactor_with_views(params: list[nn.Parameter]) -> Adafactor:
    """Return an optimizer that sees the 8 x 6 weight as 4 matrices, and the 5 x 8 weight as 5."""
    groups: list[dict[str, Any]] = [{"params": [param]} for param in params]
    for group, view in zip(groups[::2], [(4, 2, 6), (5, 2, 4)], strict=False):
        group["view"] = view
    return Adafactor(groups, lr=0.01)


def _differences_after_resuming(rank: int, folder: str) -> dict[str, float]:
    """Return how runs with a checkpoint differ from one without.

    The first run saves on 2 ranks and continues on 1, the second saves on 1 and continues on 2, and
    the third has 2 ranks before and after.
    """
    results = {}
    alone = Engine(rank, 1, _adafactor_with_views)
    for start in (0, models.STEPS):
        models.train(alone.network, alone.optimizer, start=start)
    for saving_ranks, loading_ranks in [(2, 1), (1, 2), (2, 2)]:
        path = f"{folder}/{saving_ranks}-{loading_ranks}"
        first = Engine(rank, saving_ranks, _adafactor_with_views)
        first.train()
        first.save(path)
        second = Engine(rank, loading_ranks, _adafactor_with_views)
        second.load(path)
        second.train(models.STEPS)
        if second.takes_part:
            ours = second.network, second.optimizer
            differing = models.differences(ours, (alone.network, alone.optimizer))
            ranks = f"{saving_ranks} to {loading_ranks} ranks"
            results |= {f"{ranks}: {key}": value for key, value in differing.items()}
    return results


def test_training_continues_from_distributed_checkpoints(tmp_path: Path) -> None:
    for found in pair.run(_differences_after_resuming, str(tmp_path)):
        assert found == {}
