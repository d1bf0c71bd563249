"""Step a rule on whole matrices on two ranks in one process: owners get and return matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from sharded_step import RANKS, next_request
from torch import Tensor

from optgen.runtime.eager.owner_step import Axes, Layout, OwnerStep, layouts, travelling_axes
from optgen.runtime.rule import Rule
from optgen.runtime.sharded.all_to_all import Gather, Scatter
from optgen.runtime.sharded.owners import Owners
from optgen.runtime.sharded.reductions import WideReduction
from optgen.runtime.tensors.sharding import ShardedAxis, own_shard


def step_by_owners(
    rule: Rule,
    group: Mapping[str, Any],
    function: Callable[..., Any],
    axis: int,
    columns: Sequence[list[Tensor]],
    keywords: Mapping[str, Any],
) -> Iterator[Any]:
    """Step lists of tensors on two ranks; yield the reductions over several parameters.

    Args:
        rule: The rule.
        group: The param group of the parameters.
        function: The generated function for whole parameters.
        axis: The axis along which the parameters are sharded.
        columns: The lists, parameters first, step counts last. They receive the results.
        keywords: Keyword arguments of `function`.
    """
    whole = columns[0][0]
    shards, updates, sharded_layouts = [], [], []
    for rank in range(RANKS):
        own_axis = ShardedAxis("group", axis, RANKS, rank)  # type: ignore[arg-type]
        # Without `by_matrix` the layouts list all sharded axes, batch axes included.
        rule_on_parameters = replace(rule, by_matrix=False)
        step_layout = [Layout((), ())] * bool(rule.step)
        sharded_layouts.append(
            [*_layouts(rule_on_parameters, group, whole, own_axis), *step_layout]
        )
        shards.append(
            [
                [own_shard(tensor, layout.axes).clone() for tensor in column]
                for column, layout in zip(columns, sharded_layouts[-1], strict=True)
            ]
        )
        local_shard = shards[-1][0][0]
        shape = (*local_shard.shape[:-2], *whole.shape[-2:]) if rule.by_matrix else whole.shape
        travelling_layouts = _layouts(rule, group, torch.empty(shape, device="meta"), own_axis)
        if not travelling_layouts[0].axes:
            function(*shards[-1], **keywords)
            continue
        (update,) = OwnerStep(rule, function, keywords, whole, travelling_layouts).updates(
            shards[-1]
        )
        updates.append(update)
    yield from _run_together(updates)
    _write_results(columns, sharded_layouts[0], shards)


def _write_results(
    columns: Sequence[list[Tensor]], column_layouts: list[Layout], shards: list[list[list[Tensor]]]
) -> None:
    """Write the shards of all ranks to the lists; check that ranks agree on unsharded tensors."""
    for column, layout, *by_rank in zip(columns, column_layouts, *shards, strict=True):
        for tensor, *copies in zip(column, *by_rank, strict=True):
            if not layout.axes:
                torch.testing.assert_close(copies[1:], copies[:1], rtol=0, atol=0, equal_nan=True)
            for rank, shard in enumerate(copies):
                axes = tuple(each._replace(rank=rank) for each in layout.axes)
                own_shard(tensor, axes).copy_(shard)


def _layouts(
    rule: Rule, group: Mapping[str, Any], whole: Tensor, own_axis: ShardedAxis
) -> list[Layout]:
    dims = whole.dim()

    def matrix_axes(axis: int) -> Axes:
        # A batch axis stays. A matrix axis becomes the axis along which the state is sharded.
        state_axis = own_axis if own_axis.dim < dims - 2 else own_axis._replace(dim=dims + axis)
        return travelling_axes(rule, (state_axis,), dims)

    return layouts(rule, group, whole, travelling_axes(rule, (own_axis,), dims), matrix_axes)


def _run_together(updates: list[Any]) -> Iterator[Any]:
    answers: list[Any] = [None] * len(updates)
    while updates:
        requests = [
            next_request(update, answer) for update, answer in zip(updates, answers, strict=True)
        ]
        if requests[0] is None:
            assert requests == [None] * len(requests)
            return
        if isinstance(requests[0], WideReduction):
            for each in requests:
                torch.testing.assert_close(each.numbers, requests[0].numbers, equal_nan=True)
            answers = [(yield requests[0])] * len(requests)
        else:
            answers = _answers(requests)


def _answers(requests_by_rank: list[list[Any]]) -> list[Any]:
    """Return the results of every rank's list of requests."""
    for requests in requests_by_rank:
        Owners().choose(each for each in requests if isinstance(each, Gather))
    answers_by_request = [
        _answer(list(requests_of_ranks))
        for requests_of_ranks in zip(*requests_by_rank, strict=True)
    ]
    return [list(answers) for answers in zip(*answers_by_request, strict=True)]


def _answer(requests: list[Any]) -> list[list[Tensor]]:
    """Return the result of one request for every rank."""
    first = requests[0]
    if isinstance(first, Gather):
        (axis,) = first.sharded_axes
        pieces = zip(*(each.shards for each in requests), strict=True)
        whole = [torch.cat(each, axis.dim) for each in pieces]
        return [[whole[index] for index in each.owned_indices] for each in requests]
    if isinstance(first, Scatter):
        results: dict[int, Tensor] = {}
        for each in requests:
            results |= dict(zip(each.gathered.owned_indices, each.results, strict=True))
        axes = [each.gathered.sharded_axes for each in requests]
        return [[own_shard(results[i], own_axes) for i in sorted(results)] for own_axes in axes]
    if first.groups:
        total = sum(each.tensor for each in requests)
        for each in requests:
            each.tensor.copy_(total)
    return [[] for _ in requests]
