"""Test how rules with reductions step shards: states, collectives, and what `explain` says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from distributed import pair
from distributed.cases import shard
from distributed.collectives import count_collectives
from distributed.sharded_and_whole import (
    LOWERINGS,
    OPTIONS,
    Comparison,
    optimizer_class,
    placement_of,
    shapes_of,
)
from torch import distributed, nn

import optgen
from optgen import use_lowering
from optgen.optim import Adafactor

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")


def _explain_and_error_of_triton(rank: int) -> list[str]:
    """Return `explain` for a sharded parameter and a whole one, and the error of fused Triton."""
    mesh = distributed.init_device_mesh("cpu", (2,))
    params = [nn.Parameter(shard(torch.ones(3, 4), placement_of(axis), mesh)) for axis in (0, None)]
    optimizer = Adafactor(params)
    for param, axis in zip(params, (0, None), strict=True):
        param.grad = shard(torch.ones(3, 4), placement_of(axis), mesh)
    texts = [optgen.explain(optimizer)]
    optimizer.step()
    optimizer.param_groups[0]["foreach"] = True
    texts.append(optgen.explain(optimizer))
    with use_lowering("fused_triton"), pytest.raises(RuntimeError) as caught:
        optimizer.step()
    return [*texts, str(caught.value)]


def test_explain_distinguishes_sharded_and_whole_parameters() -> None:
    for fused, foreach, triton in pair.run(_explain_and_error_of_triton):
        reason = "phase by phase with the ranks that hold the other shards"
        assert fused.splitlines() == [
            f"group 0: fused C++: CPU tensors, float32; {reason}",
            "group 0: fused C++: CPU tensors, float32",
        ]
        assert foreach.splitlines() == [
            f"group 0: foreach: foreach=True; in lists; {reason}",
            "group 0: foreach: foreach=True",
        ]
        assert "CPU tensors need TRITON_INTERPRET=1" in triton


def _shapes_and_axes_of_states(rank: int) -> list[tuple[Any, ...]]:
    """Return shapes and sharded axes of row and column states; check that they begin with zeros."""
    from torch.distributed.tensor import DTensor

    results = []
    for shape, axis in [((5, 3), 0), ((5, 3), 1), ((3, 4, 5), 0)]:
        comparison = Comparison(Adafactor, {}, [(shape, axis)], torch.bfloat16)
        comparison.ours.init_state()
        states = comparison.ours.state[comparison.sharded[0]]
        for key in ("row_var", "col_var"):
            state = states[key]
            assert isinstance(state, DTensor)
            assert state.dtype == torch.bfloat16
            assert not state.full_tensor().any()
            assert state.to_local().shape == torch.Size(
                _local_shape(state.shape, _axis(state.placements[0]), rank)
            )
            results.append((tuple(state.shape), _axis(state.placements[0])))
        assert type(states["step"]) is torch.Tensor
    return results


def _axis(placement: Any) -> int | None:
    return None if placement.is_replicate() else int(placement.dim)


def _local_shape(shape: Sequence[int], axis: int | None, rank: int) -> list[int]:
    sizes = list(shape)
    if axis is not None:
        first = math.ceil(sizes[axis] / 2)
        sizes[axis] = first if rank == 0 else sizes[axis] - first
    return sizes


def test_states_of_rows_and_columns_are_sharded_as_their_parameter() -> None:
    for found in pair.run(_shapes_and_axes_of_states):
        assert found == [
            *(((5, 1), 0), ((1, 3), None)),
            *(((5, 1), None), ((1, 3), 1)),
            *(((3, 4, 1), 0), ((3, 1, 5), 0)),
        ]


def _collectives(rank: int, cls: Any, options: Any, shapes: Any) -> list[Counter[str]]:
    """Return the collectives of one step, through each lowering."""
    comparison, found = Comparison(cls, options, shapes, torch.float32), []
    comparison.step("foreach")
    for lowering in LOWERINGS:
        with count_collectives() as calls:
            comparison.step(lowering)
        found.append(calls)
    return found


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("Adafactor", {"all_reduce": 3}),  # sums of squares, of the rows' means, of the update
        ("LAMB", {"all_reduce": 1}),
        ("CAME", {"all_reduce": 5}),
        ("Muon", {"all_to_all_single": 2}),  # matrices out, their shards back
    ],
)
def test_a_step_has_as_many_collectives_as_phases(name: str, calls: dict[str, int]) -> None:
    expected = Counter(calls) + Counter(all_reduce=1)  # the ranks also agree to step
    five_parameters = [
        *shapes_of(name)[:3],
        *shapes_of(name)[4:6],
    ]  # all but one are sharded along the first axis

    for shapes in ([((8, 4), 0)], five_parameters, five_parameters * 4):
        for found in pair.run(_collectives, optimizer_class(name), OPTIONS[name], shapes):
            assert found == [expected] * len(LOWERINGS)
