"""Run a sharded step on two ranks in one process: complete reductions and exchange shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.sharded.all_to_all import Gather, Scatter
from optgen.runtime.sharded.driver import Collectives
from optgen.runtime.sharded.reductions import PartialReduction
from optgen.runtime.tensors.sharding import ShardedAxis

RANKS = 2


def step_on_shards(
    update: Any, axis: int, shapes: Sequence[str], columns: Sequence[list[Tensor]], **keywords: Any
) -> None:
    """Call a generated `update_sharded` on two ranks, each with its shards of these tensors.

    Args:
        axis: Axis along which the parameters are sharded.
        shapes: Shape of each list: "like" the parameters, a "row" or "col" of them, or a "scalar".
        columns: The lists, parameters first. They receive the results.
        keywords: Further keyword arguments of `update`.
    """
    whole = columns[0][0]
    own_axes = [ShardedAxis("group", axis, RANKS, rank) for rank in range(RANKS)]  # type: ignore[arg-type]
    reduced_axes = {"row": whole.dim() - 1, "col": whole.dim() - 2}
    sharded = [shape != "scalar" and reduced_axes.get(shape) != axis for shape in shapes]
    shards = [
        [
            [_shard(tensor, own_axis if is_sharded else None).clone() for tensor in column]
            for column, is_sharded in zip(columns, sharded, strict=True)
        ]
        for own_axis in own_axes
    ]
    updates = [
        update(*lists, **keywords, collectives=Collectives(whole, (own_axis,)))
        for lists, own_axis in zip(shards, own_axes, strict=True)
    ]
    # An update is None if it needed no communication.
    _run_together([update for update in updates if update is not None])
    for column, is_sharded, *by_rank in zip(columns, sharded, *shards, strict=True):
        for tensor, *copies in zip(column, *by_rank, strict=True):
            if not is_sharded:
                torch.testing.assert_close(copies[1:], copies[:1], rtol=0, atol=0, equal_nan=True)
            tensor.copy_(torch.cat(copies, axis) if is_sharded else copies[0])


def _shard(tensor: Tensor, axis: ShardedAxis | None) -> Tensor:
    if axis is None:
        return tensor
    return tensor.split(axis.sizes(tensor.shape[axis.dim]), axis.dim)[axis.rank]


def _run_together(updates: list[Any]) -> None:
    answers: list[Any] = [None] * len(updates)
    while updates:
        requests = [
            next_request(update, answer) for update, answer in zip(updates, answers, strict=True)
        ]
        if requests[0] is None:
            assert requests == [None] * len(requests)
            return
        answers = _answers(requests)


def next_request(update: Any, answer: Any) -> Any:
    """Return the next request of an update; None if the update has ended."""
    try:
        return update.send(answer)
    except StopIteration:
        return None


def _answers(requests: list[Any]) -> list[Any]:
    first = requests[0]
    if isinstance(first, Gather):
        for request in requests:  # the first rank owns all matrices
            request.owners = [(0,) * len(request.sharded_axes)] * len(request.shards)
        if not first.sharded_axes:
            return [request.shards for request in requests]
        axis = first.sharded_axes[0].dim
        return [
            [torch.cat(shards, axis) for shards in zip(*(r.shards for r in requests), strict=True)],
            requests[1].stand_ins(),
        ]
    if isinstance(first, Scatter):
        axes = [request.gathered.sharded_axes for request in requests]
        if not axes[0]:
            return [request.results for request in requests]
        return [[_shard(matrix, axis) for matrix in first.results] for (axis,) in axes]
    for partials in zip(*requests, strict=True):
        _all_reduce(list(partials))
    return [None] * len(requests)


def _all_reduce(partials: list[PartialReduction]) -> None:
    if partials[0].groups:
        stacked = torch.stack([partial.tensor for partial in partials])
        combined = stacked.amax(0) if partials[0].is_maximum else stacked.sum(0)
        for partial in partials:
            partial.tensor.copy_(combined)
