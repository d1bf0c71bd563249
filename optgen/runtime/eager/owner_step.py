"""Step sharded parameters of rules on whole matrices: one rank steps each parameter as a whole.

Shards of a parameter, its gradient and its states travel to the rank that owns the parameter in
this step. The owner calls the generated function for whole parameters, and shards of the results
travel back. Rows, columns and numbers are small, so every rank gets all of them: they are summed
over the ranks, and each rank contributes only the elements that it knows. The gather of the
parameters is the *leader*: it decides which rank owns which parameter, also for gradients and
states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from optgen.runtime.eager.parts import sublist_length
from optgen.runtime.eager.scalars import advance
from optgen.runtime.eager.working_copies import in_one_dtype
from optgen.runtime.rule import Rule, State
from optgen.runtime.sharded.all_to_all import Gather, Scatter
from optgen.runtime.sharded.driver import AXES, Update, index_in_axes, round_length
from optgen.runtime.sharded.reductions import PartialReduction
from optgen.runtime.tensors.sharding import (
    ShardedAxis,
    Sharding,
    matrix_placements,
    own_shard,
    sharded_matrix_axis,
)

Columns: TypeAlias = Sequence[list[Tensor]]

_UNKNOWN = -0.0
"""The number that a rank adds for an element that it does not know: any x + -0.0 is x."""


@dataclass(frozen=True)
class OwnerStep:
    """A step of sharded parameters of one shape.

    * `function`, `keywords`: the generated function for whole parameters, and its keywords.
    * `seen_param`: a whole parameter in the shape that the rule sees.
    * `layouts`: of the lists of parameters, gradients and states; step counts have none.
    """

    rule: Rule
    function: Callable[..., Any]
    keywords: Mapping[str, Any]
    seen_param: Tensor
    layouts: Sequence[Layout]

    def updates(self, columns: Columns) -> Iterator[Update]:
        """Yield the updates of a bucket.

        The bucket is split into parts, so that some travel while others are computed with.
        """
        length = self._part_length(columns)
        for start in range(0, len(columns[0]), length):
            yield self.update([column[start : start + length] for column in columns])

    def update(self, columns: Columns) -> Update:
        """Update parameters, each on its owner; every rank advances all step counts.

        If an owner fails, no rank writes anything.
        """
        lists = in_one_dtype(self.rule, list(columns), self.keywords, self.seen_param)
        tensors = lists.columns[: len(self.layouts)]
        step_counts = [column for column in lists.columns[len(self.layouts) :] if column]
        advanced = [[count.clone() for count in column] for column in step_counts]
        exchanges = self._exchanges(tensors)
        leader = exchanges[0].gather
        answers = yield [each.gather_request() for each in exchanges]
        whole = [each.whole(answer) for each, answer in zip(exchanges, answers, strict=True)]
        error: Exception | None = None
        try:
            if leader.owned_indices:
                yield from self._call([*whole, *advanced], leader)
            elif self.rule.wide:
                stand_ins = map(_stand_in, tensors, self.layouts)
                yield from self._call([*stand_ins, *advanced], leader)
            elif advanced:
                advance(*advanced)
        except Exception as caught:
            if self.rule.wide or not leader.tells_failures:
                raise
            error = caught
        pairs = zip(exchanges, whole, strict=True)
        answers = yield [each.scatter_request(results, error) for each, results in pairs]
        for exchange, answer in zip(exchanges, answers, strict=True):
            exchange.write(answer)
        for column, new_column in zip(step_counts, advanced, strict=True):
            torch._foreach_copy_(column, new_column)
        lists.write_back()

    def _exchanges(self, tensors: Columns) -> tuple[_Matrices, *tuple[_Exchange, ...]]:
        """Return the transfer of each list; that of the parameters leads."""
        matrices = prod(self.seen_param.shape[:-2])
        cost = sum(prod(x.shape) * max((1, *x.shape)[-2:]) for x in self.layouts)
        params = _Matrices(tensors[0], self.layouts[0], matrices, cost=cost)
        exchanges: list[_Exchange] = []
        for column, layout in zip(tensors[1:], self.layouts[1:], strict=True):
            if not column:
                exchanges.append(_NoTensors())
            elif layout.is_replicated:
                exchanges.append(_Replicated(column, layout, params.gather))
            else:
                exchanges.append(_Matrices(column, layout, matrices, leader=params.gather))
        return (params, *exchanges)

    def _call(self, columns: Columns, leader: Gather) -> Update:
        """Call the function; complete its reductions over several parameters."""
        requests = self.function(*columns, **self.keywords)
        if requests is not None:
            yield from _completed(requests, leader)

    def _part_length(self, columns: Columns) -> int:
        """Return how many parameters a part has; all ranks find the same number."""
        pairs = [(column[0], x) for column, x in zip(columns, self.layouts, strict=False) if column]
        if (
            self.rule.wide
        ):  # else the function would divide its lists, and request each reduction more than once
            widest_tensor = max((tensor for tensor, _ in pairs), key=lambda tensor: tensor.itemsize)
            return sublist_length(widest_tensor, max(prod(layout.shape) for _, layout in pairs))
        # A rank's share of a batch may be smaller than another's, so the whole batch counts.
        matrix_bytes = sum(tensor.itemsize * prod(layout.shape[-2:]) for tensor, layout in pairs)
        param_bytes = matrix_bytes * prod(self.seen_param.shape[:-2])
        ranks = prod(axis.shard_count for axis in self.layouts[0].axes)
        return round_length(len(columns[0]), param_bytes, ranks)


class _Exchange(Protocol):
    """The transfer of one list to the owners of its tensors, and of the results back."""

    def gather_request(self) -> Gather | PartialReduction:
        """Return the request for the whole tensors."""

    def whole(self, answer: list[Tensor]) -> list[Tensor]:
        """Return the whole tensors that this rank owns."""

    def scatter_request(
        self, results: list[Tensor], error: Exception | None
    ) -> Scatter | PartialReduction:
        """Return the request for this rank's shards of the updated tensors."""

    def write(self, answer: list[Tensor]) -> None:
        """Write the updated shards."""


class _NoTensors:
    """A list without tensors: no parameter of the bucket has the state."""

    def gather_request(self) -> PartialReduction:
        return PartialReduction(torch.empty(0), ())

    def whole(self, answer: list[Tensor]) -> list[Tensor]:
        return []

    def scatter_request(self, results: list[Tensor], error: Exception | None) -> PartialReduction:
        return self.gather_request()

    def write(self, answer: list[Tensor]) -> None:
        pass


class _Matrices:
    """A list of tensors whose shards travel to owners; shards of the results travel back."""

    def __init__(
        self,
        shards: list[Tensor],
        layout: Layout,
        batch: int,
        *,
        leader: Gather | None = None,
        cost: float = 0,
    ) -> None:
        self.shards, self.written = shards, layout.written
        self.gather = Gather(shards, layout.shape, layout.axes, leader, cost=cost, batch=batch)

    def gather_request(self) -> Gather:
        return self.gather

    def whole(self, answer: list[Tensor]) -> list[Tensor]:
        return answer

    def scatter_request(
        self, results: list[Tensor], error: Exception | None
    ) -> Scatter | PartialReduction:
        if not self.written:
            return _NoTensors().gather_request()
        return Scatter(results, self.gather, error)

    def write(self, answer: list[Tensor]) -> None:
        if self.written:
            torch._foreach_copy_(self.shards, answer)


class _Replicated:
    """A list of rows, columns or numbers, of which every rank gets all."""

    def __init__(self, shards: list[Tensor], layout: Layout, leader: Gather) -> None:
        self.shards, self.layout, self.leader = shards, layout, leader
        self.stacked = torch.empty(0)

    def gather_request(self) -> PartialReduction:
        if not self.layout.axes:  # this rank has all elements
            return _NoTensors().gather_request()
        self.stacked = self._unknown()
        for whole, shard in zip(self.stacked, self.shards, strict=True):
            own_shard(whole, self.layout.axes).copy_(shard)
        return PartialReduction(self.stacked, tuple(axis.group for axis in self.layout.axes))

    def whole(self, answer: list[Tensor]) -> list[Tensor]:
        whole = self.stacked if self.layout.axes else self.shards
        dtype = self.shards[0].dtype
        return [whole[index].to(dtype, copy=True) for index in self.leader.owned_indices]

    def scatter_request(self, results: list[Tensor], error: Exception | None) -> PartialReduction:
        if not self.layout.written:
            return _NoTensors().gather_request()
        self.stacked = self._unknown()
        for index, result in zip(self.leader.owned_indices, results, strict=True):
            self.stacked[index].copy_(result.reshape(self.layout.shape))
        return PartialReduction(
            self.stacked, tuple(axis.group for axis in self.leader.sharded_axes)
        )

    def write(self, answer: list[Tensor]) -> None:
        if self.layout.written:
            for shard, whole in zip(self.shards, self.stacked, strict=True):
                shard.copy_(own_shard(whole, self.layout.axes))

    def _unknown(self) -> Tensor:
        """Return whole tensors, stacked, of which no element is known yet."""
        shape = (len(self.shards), *self.layout.shape)
        device = self.leader.shards[0].device
        return torch.full(shape, _UNKNOWN, dtype=torch.float64, device=device)


def _stand_in(column: list[Tensor], layout: Layout) -> list[Tensor]:
    """Return a list of one tensor of one element, as an argument on a rank that owns no parameter.

    That rank must call the function too, so that it asks for the same reductions as the others. Its
    numbers are not added, and it drops its results.
    """
    return [column[0].new_zeros([1] * len(layout.shape))] if column else []


def _completed(requests: Update, leader: Gather) -> Update:
    """Yield an owner's requests for reductions over several parameters, with all numbers.

    An owner knows only the numbers of its own parameters. So before each request, the ranks
    complete the numbers.
    """
    groups = tuple(axis.group for axis in leader.sharded_axes)
    answer: Any = None
    while True:
        try:
            request: Any = requests.send(answer)
        except StopIteration:
            return
        count, device = len(leader.shards), leader.shards[0].device
        numbers = torch.full((count,), _UNKNOWN, dtype=torch.float64, device=device)
        if owned := leader.owned_indices:
            numbers[owned] = request.numbers.to(device)
        yield [PartialReduction(numbers, groups)]
        result = yield replace(request, numbers=numbers, answer=lambda result: result)
        answer = request.answer(result)


Axes: TypeAlias = tuple[ShardedAxis, ...]


class Layout(NamedTuple):
    """The layout of the tensors of one list."""

    shape: tuple[int, ...]  # of the tensor as an owner gets it
    axes: Axes  # how the tensor is sharded, outermost sharding first
    # True for a row, column or scalar state: every rank gets its tensor, not only the owner.
    is_replicated: bool = False
    written: bool = True


def travelling_axes(rule: Rule, axes: Axes, dims: int) -> Axes:
    """Return those sharded axes of a parameter that its owner needs whole.

    If each matrix steps by itself, an axis that divides whole matrices among ranks stays sharded.
    """
    if not rule.by_matrix:
        return axes
    return tuple(axis for axis in axes if AXES[index_in_axes(axis.dim, dims)] != "batch")


def layouts(
    rule: Rule,
    group: Mapping[str, Any],
    owned: Tensor,
    axes: Axes,
    matrix_axes: Callable[[int], Axes],
) -> list[Layout]:
    """Return the layouts of parameters, gradients and states.

    Args:
        rule: the rule.
        group: the parameters' group.
        owned: a meta tensor of the shape that an owner gets: the whole parameter, or with
            `by_matrix` whole matrices of this rank's share of the batch.
        axes: how a parameter is sharded.
        matrix_axes: returns the sharded axes of a matrix state that is cut along a given axis.
    """
    param_layout = Layout(tuple(owned.shape), axes)
    result = [param_layout, param_layout._replace(written=False)]
    for state in rule.states:
        if state.suits(owned, group):
            written = state.written and not state.step_argument
            result.append(_layout(state, rule.rank(group), owned, axes, matrix_axes, written))
    return result


def _layout(
    state: State,
    rank: int,
    owned: Tensor,
    axes: Axes,
    matrix_axes: Callable[[int], Axes],
    written: bool,
) -> Layout:
    """Return the layout of a state that parameters of this shape have."""
    if state.shape == "scalar":
        return Layout((), (), is_replicated=True, written=written)
    shape = tuple(state.shape_for(owned, rank))
    if state.shape in ("row", "col"):
        reduced_dim = owned.dim() - (1 if state.shape == "row" else 2)
        remaining_axes = tuple(axis for axis in axes if axis.dim != reduced_dim)
        return Layout(shape, remaining_axes, is_replicated=True, written=written)
    if state.shape != "like":
        axes = matrix_axes(sharded_matrix_axis(state))
    return Layout(shape, axes, written=written)


def layouts_of_shards(
    rule: Rule, group: Mapping[str, Any], seen_param: Tensor, local: Tensor, sharding: Sharding
) -> list[Layout]:
    """Return the layouts of parameters, gradients and states that are DTensors.

    Args:
        rule: the rule.
        group: the parameters' group.
        seen_param: a whole parameter in the shape that the rule sees.
        local: this rank's shard of this parameter, in the same view.
        sharding: how the parameter is sharded.
    """
    dims = seen_param.dim()
    shape = (*local.shape[:-2], *seen_param.shape[-2:]) if rule.by_matrix else seen_param.shape

    def matrix_axes(axis: int) -> Axes:
        placements = matrix_placements(sharding.placements, dims, axis)
        return travelling_axes(rule, Sharding(sharding.mesh, placements).sharded_axes(), dims)

    axes = travelling_axes(rule, sharding.sharded_axes(), dims)
    owned = torch.empty(shape, device="meta")
    return layouts(rule, group, owned, axes, matrix_axes)
