"""Run the updates of sharded parameters together, round by round.

An update over shards is a generator. Where it needs data of the other ranks, it yields a request
and resumes with the answer. Some updates form a *round*: one collective answers the requests of all
updates of a round, whatever the number of tensors. All reductions that wait are completed together.

Matrices travel while others are computed with. The rounds form a queue. The oldest round waits for
its matrices and is resumed. Its next requests start to travel, and it joins the end of the queue:

    this rank computes          round 0    round 1    round 2    ...
    meanwhile there travel      shards 1   shards 2   shards 3   ...
                                           results 0  results 1  ...

Rounds begin as long as the matrices on their way to owners are few enough. All ranks have the same
rounds in one order, because their sizes follow from shapes alone. So no rank waits for another in a
circle. Updates of a rule that reduces over several parameters wait for one another in a single
process too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from math import ceil, prod
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from optgen.runtime import newton_schulz_cost
from optgen.runtime.sharded.all_to_all import (
    Gather,
    Scatter,
    Transfer,
    start_gather,
    start_scatter,
)
from optgen.runtime.sharded.owners import Owners
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
"""The update of some parameters.

A request for a partial reduction is answered in place; a request for matrices is answered by a list
of matrices; a request for a reduction over several parameters, by its result; a list of requests,
by a list of answers.
"""

ROUND_BYTES = 2**22
"""Bytes of whole matrices that a rank gets in a round, about; one update may have more."""
HELD_BYTES = 2**28
"""Bytes of whole matrices on their way to a rank, about: no round begins while there are more.

A rank may hold as many bytes of results on their way back.
"""


def round_length(count: int, param_bytes: int, ranks: int) -> int:
    """Return how many of `count` equal parameters one update may take, so that rounds are small.

    Args:
        count: the number of parameters.
        param_bytes: the bytes that travel to the owner of a parameter.
        ranks: the number of owners.
    """
    rounds = min(count // ranks, count * param_bytes // (ranks * ROUND_BYTES))
    return ceil(count / max(1, rounds))


def run(updates: Sequence[Update], groups: Sequence[int] = ()) -> None:
    """Run updates to their ends; every rank must pass the same updates, in one order.

    Args:
        updates: the updates of a step.
        groups: for each update, a number that stands for its param group; only for updates that
            reduce over several parameters.

    Raises:
        RuntimeError: another rank failed with its matrices. The parameters of earlier rounds have
            been updated by then.
    """
    try:
        _Step(updates).run(dict(enumerate(groups)))
    finally:
        for update in updates:
            update.close()


class _Step:
    """The updates of a step: those that have not begun, and those of the rounds in the queue."""

    def __init__(self, updates: Sequence[Update]) -> None:
        self._updates = updates
        self._not_begun = deque(range(len(updates)))
        self._rounds: deque[_Round] = deque()
        self._wide_requests: dict[int, WideReduction] = {}
        self._owners = Owners()

    def run(self, groups: Mapping[int, int]) -> None:
        """Resume updates until all have ended.

        Reductions over several parameters wait until every update asks for one.
        """
        while True:
            self._begin_rounds()
            next_round = _Round()
            if self._rounds:
                self._resume_oldest(next_round)
            elif self._wide_requests:
                for index, answer in reduce_wide(self._wide_requests, groups).items():
                    del self._wide_requests[index]
                    self._resume(index, answer, next_round)
            else:
                return
            self._start([next_round])

    def _begin_rounds(self) -> None:
        """Begin updates while few bytes are on their way to owners."""
        held = sum(each.held_bytes for each in self._rounds)
        begun = []
        while self._not_begun and held < HELD_BYTES:
            new_round = _Round()
            while self._not_begun and new_round.held_bytes < ROUND_BYTES:
                self._resume(self._not_begun.popleft(), None, new_round)
            held += new_round.held_bytes
            begun.append(new_round)
        self._start(begun)

    def _start(self, rounds: Sequence[_Round]) -> None:
        """Start the transfers of rounds; add the rounds to the queue."""
        self._owners.choose(each for one in rounds for each in one.all_of(Gather))
        for each in rounds:
            if each.requests:
                each.start()
                self._rounds.append(each)

    def _resume(self, index: int, answer: Any, into: _Round) -> None:
        """Send an update its answer; add its next request, if any, to a round."""
        try:
            request = self._updates[index].send(answer)
        except StopIteration:
            return
        if isinstance(request, WideReduction):
            self._wide_requests[index] = request
        else:
            into.add(index, request)

    def _resume_oldest(self, into: _Round) -> None:
        """Remove the oldest round from the queue; resume its updates when they have answers."""
        batched_all_reduce(each for one in self._rounds for each in one.take_reductions())
        oldest = self._rounds.popleft()
        for index, answer in oldest.answers().items():
            self._resume(index, answer, into)


class _Round:
    """Requests of some updates that travel together, by the index of the update."""

    def __init__(self) -> None:
        self.requests: dict[int, Any] = {}
        self.held_bytes = 0  # of matrices on their way to a rank
        self._transfers: dict[type, Transfer] = {}
        self._reductions: list[PartialReduction] = []

    def add(self, index: int, request: Any) -> None:
        """Add the request of an update."""
        self.requests[index] = request
        listed = request if isinstance(request, list) else [request]
        self.held_bytes += sum(each.held_bytes for each in listed if isinstance(each, Gather))

    def all_of(self, kind: type) -> list[Any]:
        """Return the requests of one kind, those in lists too."""
        lists = (each if isinstance(each, list) else [each] for each in self.requests.values())
        return [each for listed in lists for each in listed if isinstance(each, kind)]

    def start(self) -> None:
        """Let matrices start to travel."""
        self._transfers[Gather] = start_gather(self.all_of(Gather))
        self._transfers[Scatter] = start_scatter(self.all_of(Scatter))
        self._reductions = self.all_of(PartialReduction)

    def take_reductions(self) -> list[PartialReduction]:
        """Return the reductions that are not complete; the caller completes them."""
        reductions, self._reductions = self._reductions, []
        return reductions

    def answers(self) -> dict[int, Any]:
        """Wait for the matrices; return the answer to each update, whose reductions are complete.

        Raises:
            Exception: This rank, or another one, had no results to send.
        """
        arrived = {kind: iter(each.matrices()) for kind, each in self._transfers.items()}
        if self._transfers[Scatter].failed:
            _raise_first([each.error for each in self.all_of(Scatter)])

        def answer(request: Any) -> list[Tensor]:
            if isinstance(request, PartialReduction):
                return []  # its tensor is completed in place
            tensors = next(arrived[type(request)])
            return tensors or request.stand_ins() if isinstance(request, Gather) else tensors

        return {
            index: list(map(answer, request)) if isinstance(request, list) else answer(request)
            for index, request in self.requests.items()
        }


def _raise_first(errors: Iterable[Exception | None]) -> None:
    """Raise this rank's first error; without one, tell that another rank has failed."""
    for error in filter(None, errors):
        raise error
    raise RuntimeError(
        "another rank failed in the middle of this step, with matrices that it owns: the error on "
        "that rank says why; parameters that were updated before stay updated"
    )


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
            tensors: this rank's shards of tensors that have the parameters' shape. A rank that
                owns no matrix gets one without elements.
        """
        *batch, rows, cols = self.whole.shape
        local_batch = tensors[0].shape[:-2]
        cost = prod(local_batch) * newton_schulz_cost.work(rows, cols)
        self._gathered = Gather(
            tensors,
            (*local_batch, rows, cols),
            self._matrix_axes(),
            cost=cost,
            batch=prod(batch),
            any_dtype=True,
        )
        return self._gathered

    def round_length(self, shards: Sequence[Tensor]) -> int:
        """Return how many of these shards one update may gather, so that rounds are small."""
        axes = self._matrix_axes()
        if not axes:
            return len(shards)
        param_bytes = self.whole.numel() * shards[0].itemsize
        return round_length(len(shards), param_bytes, prod(each.shard_count for each in axes))

    def scatter(self, results: Sequence[Tensor]) -> Scatter:
        """Request this rank's shards of the results computed from the tensors gathered last."""
        assert self._gathered is not None
        return Scatter(results, self._gathered)

    def _matrix_axes(self) -> tuple[ShardedAxis, ...]:
        """Return the sharded axes that divide matrices."""
        return tuple(each for each in self.sharded_axes if self._axis_name(each) != "batch")

    def _axis_name(self, axis: ShardedAxis) -> str:
        return AXES[index_in_axes(axis.dim, self.whole.dim())]
