"""Run the updates of sharded parameters together, phase by phase.

An update over shards is a generator. Where it needs data of the other ranks, it yields a request
and resumes with the answer. All updates of a step are resumed together. So one collective answers
the requests of all updates, whatever the number of tensors. Updates of a rule that reduces over
several parameters wait for one another in a single process too.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from optgen.runtime.sharded.all_to_all import Gather, Scatter, gather, scatter
from optgen.runtime.sharded.reductions import (
    PartialReduction,
    WideReduction,
    batched_all_reduce,
    reduce_wide,
)
from optgen.runtime.tensors.sharding import ShardedAxis

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


Request: TypeAlias = (
    Sequence[PartialReduction | Gather | Scatter] | Gather | Scatter | WideReduction
)
Update: TypeAlias = Generator[Request, Any, None]
"""The update of one bucket.

A request for a partial reduction is answered in place; a request for matrices is answered by a list
of matrices; a request for a reduction over several parameters, by its result; a list of requests,
by a list of answers.
"""


def run(updates: Sequence[Update], groups: Sequence[int] = ()) -> None:
    """Run updates to their ends; every rank must pass the same updates, in one order.

    Args:
        updates: the updates of a step.
        groups: for each update, a number that stands for its param group; only for updates that
            reduce over several parameters.
    """
    try:
        _run(dict(enumerate(updates)), dict(enumerate(groups)))
    finally:
        for update in updates:
            update.close()


def _run(updates: Mapping[int, Update], groups: Mapping[int, int]) -> None:
    """Resume updates with answers until all have ended.

    Reductions over several parameters wait until every update asks for one.
    """
    wide_requests: dict[int, WideReduction] = {}
    answers: dict[int, Any] = dict.fromkeys(updates)
    while answers:
        requests: dict[int, Any] = {}
        for index, answer in answers.items():
            request = _resume(updates[index], answer)
            if isinstance(request, WideReduction):
                wide_requests[index] = request
            elif request is not None:
                requests[index] = request
        if requests:
            answers = dict(zip(requests, _answer(list(requests.values())), strict=True))
        else:
            answers = reduce_wide(wide_requests, groups)
            for index in answers:
                del wide_requests[index]


def _resume(update: Update, answer: Any) -> Request | None:
    """Send an update its answer; return its next request, or None at its end."""
    try:
        return update.send(answer)
    except StopIteration:
        return None


def _answer(requests: list[Any]) -> list[Any]:
    """Return the answers to these requests, in their order."""
    lists = [request if isinstance(request, list) else [request] for request in requests]
    flat = [each for listed in lists for each in listed]
    batched_all_reduce(each for each in flat if isinstance(each, PartialReduction))
    gathered = iter(gather([each for each in flat if isinstance(each, Gather)]))
    scattered = iter(scatter([each for each in flat if isinstance(each, Scatter)]))
    answers: dict[type, Iterator[list[Tensor]]] = {
        Gather: gathered,
        Scatter: scattered,
        PartialReduction: repeat([]),  # its tensor is completed in place
    }
    answer_lists = [[next(answers[type(each)]) for each in listed] for listed in lists]
    return [
        answer_list if isinstance(request, list) else answer_list[0]
        for request, answer_list in zip(requests, answer_lists, strict=True)
    ]


AXES = ("batch", "rows", "cols")
"""The axes that a reduction may go over: a parameter's matrices, their rows, their columns."""


def index_in_axes(dim: int, num_dims: int) -> int:
    """Return the index in AXES of dimension `dim` of a parameter with `num_dims` dimensions."""
    return max(0, dim - num_dims + len(AXES))


class Collectives:
    """Requests of one bucket, whose sharded parameters all have one shape.

    Args:
        whole: the first parameter, a DTensor; its sizes are those of the whole parameter.
        sharded_axes: how each parameter is sharded, outermost sharding first.
    """

    def __init__(self, whole: Tensor, sharded_axes: tuple[ShardedAxis, ...]) -> None:
        self.whole, self.sharded_axes = whole, sharded_axes
        self._gathered: Gather | None = None

    def sum(self, partial: Tensor, *axes: str) -> PartialReduction:
        """Request the sum of the ranks' partial sums along these AXES; without AXES, along all."""
        return PartialReduction(partial, self.groups(*axes))

    def max(self, partial: Tensor, *axes: str) -> PartialReduction:
        """Request the maximum of the ranks' maxima along these AXES; without AXES, along all."""
        return PartialReduction(partial, self.groups(*axes), is_maximum=True)

    def groups(self, *axes: str) -> tuple[ProcessGroup, ...]:
        """Return the groups of ranks that shard these AXES; without AXES, any axis."""
        axis_names = axes or AXES
        return tuple(
            each.group for each in self.sharded_axes if self._axis_name(each) in axis_names
        )

    def gather(self, tensors: Sequence[Tensor]) -> Gather:
        """Request the whole matrices that this rank is to compute with.

        Args:
            tensors: this rank's shards of tensors that have the parameters' shape.
        """
        matrix_axes = tuple(each for each in self.sharded_axes if self._axis_name(each) != "batch")
        whole_shape = (*tensors[0].shape[:-2], *self.whole.shape[-2:])
        self._gathered = Gather(tensors, whole_shape, matrix_axes)
        return self._gathered

    def scatter(self, results: Sequence[Tensor]) -> Scatter:
        """Request this rank's shards of the results computed from the tensors gathered last."""
        assert self._gathered is not None
        return Scatter(results, self._gathered)

    def _axis_name(self, axis: ShardedAxis) -> str:
        return AXES[index_in_axes(axis.dim, self.whole.dim())]
