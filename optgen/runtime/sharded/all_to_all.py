"""Redistribute sharded matrices so that each is whole on one rank, and scatter the results.

A matrix op needs whole matrices, and its work grows faster than their size. So the ranks divide the
matrices of a step among themselves: each matrix has one owner (`owners.py`), which computes. Shards
travel to the owner and back by all_to_all, once in each direction for every sharded axis. A rank
sends and receives about as much as it holds. With all_gather, every rank would receive all
matrices, and compute with all of them.

A transfer is asynchronous: `start_gather` and `start_scatter` return at once, and `matrices` waits.
The driver lets some matrices travel while it computes with others (`driver.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from optgen.runtime.tensors.sharding import ShardedAxis


HeldPieces = dict[int, Tensor]  # this rank's piece of each matrix, by its index in the request


class Transfer:
    """Matrices that travel between ranks while this rank computes something else.

    All ranks must start the same transfers in one order, and wait for them in one order.
    """

    def __init__(
        self, levels: Iterator[None], held: list[HeldPieces], failures: Sequence[bool] = ()
    ) -> None:
        self._levels, self._held, self._failures = levels, held, failures
        next(levels, None)  # the first level starts to travel

    @property
    def failed(self) -> bool:
        """True if an owner had no results to send; known after `matrices`."""
        return any(self._failures)

    def matrices(self) -> list[list[Tensor]]:
        """Wait, and return for each request the matrices that have arrived."""
        for _ in self._levels:
            pass
        return [list(matrices.values()) for matrices in self._held]


def start_gather(requests: Sequence[Gather]) -> Transfer:
    """Send the shards of matrices to owners; each request gets the matrices that this rank owns.

    The requests must have owners.
    """
    held: list[HeldPieces] = [dict(enumerate(request.shards)) for request in requests]
    dtypes = [request.shards[0].dtype for request in requests]

    def levels() -> Iterator[None]:
        for level in range(-1, -_depth(requests) - 1, -1):
            yield from _together(
                _unshard(group, like, [(requests[i], held[i]) for i in indices], level)
                for group, like, indices in _by_collective(requests, dtypes, level)
            )

    return Transfer(levels(), held)


def start_scatter(requests: Sequence[Scatter]) -> Transfer:
    """Send the shards of results back; each request gets this rank's shard of every matrix.

    If an owner failed, its results are not results, and the other ranks learn of it.
    """
    gathered = [request.gathered for request in requests]
    dtypes = [request.dtype for request in requests]
    failures = [request.error is not None for request in requests]
    held: list[HeldPieces] = [
        dict(zip(request.gathered.owned_indices, request.results, strict=True))
        for request in requests
    ]

    def levels() -> Iterator[None]:
        for level in range(_depth(gathered)):
            yield from _together(
                _reshard(group, like, [(gathered[i], held[i]) for i in indices], level, failures)
                for group, like, indices in _by_collective(gathered, dtypes, level)
            )

    return Transfer(levels(), held, failures)


def _together(exchanges: Iterable[Iterator[None]]) -> Iterator[None]:
    """Start exchanges; after a pause, finish them."""
    started = list(exchanges)
    for exchange in started:
        next(exchange)
    yield
    for exchange in started:
        next(exchange, None)


def _depth(requests: Iterable[Gather]) -> int:
    """Return how many levels of sharding the requests have at most."""
    return max((len(request.sharded_axes) for request in requests), default=0)


def _by_collective(
    requests: Sequence[Gather], dtypes: Sequence[torch.dtype], level: int
) -> Iterable[tuple[ProcessGroup, Tensor, list[int]]]:
    """Return the indices of the requests that one collective can answer, and an empty tensor of it.

    Such requests are sharded over the same group at this level, and their tensors travel in one
    dtype. Level 0 is the outermost sharding, level -1 the innermost.
    """
    indices_by_key: dict[tuple[ProcessGroup, torch.dtype], list[int]] = {}
    for index, (request, dtype) in enumerate(zip(requests, dtypes, strict=True)):
        if -len(request.sharded_axes) <= level < len(request.sharded_axes):
            key = (request.sharded_axes[level].group, dtype)
            indices_by_key.setdefault(key, []).append(index)
    return [
        (group, requests[indices[0]].shards[0].new_empty(0, dtype=dtype), indices)
        for (group, dtype), indices in indices_by_key.items()
    ]


def _unshard(
    group: ProcessGroup, like: Tensor, pairs: list[tuple[Gather, HeldPieces]], level: int
) -> Iterator[None]:
    """Undo one sharding: send the pieces of each matrix to its owner's rank in the group."""
    ranks = range(pairs[0][0].sharded_axes[level].shard_count)
    sent: list[list[Tensor]] = [[] for _ in ranks]
    shapes: list[list[Shape]] = [[] for _ in ranks]
    for request, held in pairs:
        axis, outer_shape = request.sharded_axes[level], request.shapes[level - 1]
        for index, piece in held.items():
            sent[request.owners[index][level]].append(piece)
        stay_here = [index for index in held if request.owners[index][level] == axis.rank]
        for rank, size in enumerate(axis.sizes(outer_shape[axis.dim])):
            shapes[rank] += [resized(outer_shape, axis.dim, size)] * len(stay_here)
    received = yield from _exchange(group, sent, shapes, like)
    for request, held in pairs:
        axis = request.sharded_axes[level]
        stay_here = [index for index in held if request.owners[index][level] == axis.rank]
        pieces = {index: [next(tensors) for tensors in received] for index in stay_here}
        held.clear()
        held.update((index, torch.cat(each, axis.dim)) for index, each in pieces.items())


def _reshard(
    group: ProcessGroup,
    like: Tensor,
    pairs: list[tuple[Gather, HeldPieces]],
    level: int,
    failures: list[bool],
) -> Iterator[None]:
    """Redo one sharding: split this rank's data, and send each rank of the group its pieces.

    On the CPU, each rank also tells the others whether it failed. On another device, the host would
    wait for the number.
    """
    ranks = range(pairs[0][0].sharded_axes[level].shard_count)
    tells = pairs[0][0].tells_failures
    flag = like.new_full((1,), any(failures))
    sent: list[list[Tensor]] = [[flag] * tells for _ in ranks]
    shapes: list[list[Shape]] = [[(1,)] * tells for _ in ranks]
    for request, held in pairs:
        axis, outer_shape = request.sharded_axes[level], request.shapes[level]
        sizes = axis.sizes(outer_shape[axis.dim])
        for matrix in held.values():
            for rank, piece in enumerate(matrix.split(sizes, axis.dim)):
                sent[rank].append(piece)
        for rank in ranks:
            shapes[rank] += [request.shapes[level + 1]] * len(_held_indices(request, level, rank))
    received = yield from _exchange(group, sent, shapes, like)
    failures += [bool(next(tensors)) for tensors in received if tells]
    for request, held in pairs:
        senders = {index: rank for rank in ranks for index in _held_indices(request, level, rank)}
        arrived = {index: next(received[rank]) for index, rank in senders.items()}
        held.clear()
        held.update(sorted(arrived.items()))  # the order that the next level expects


def _held_indices(request: Gather, level: int, rank: int) -> list[int]:
    """Return the indices of the matrices that a rank of the group holds before `_reshard`."""
    coordinates = (rank, *(axis.rank for axis in request.sharded_axes[level + 1 :]))
    return [index for index, owner in enumerate(request.owners) if owner[level:] == coordinates]


def _exchange(
    group: ProcessGroup, sent: list[list[Tensor]], shapes: list[list[Shape]], empty: Tensor
) -> Generator[None, None, list[Iterator[Tensor]]]:
    """Send each rank of a group its tensors; after a pause, return those that each has sent here.

    `shapes` holds, for each rank, the shapes of the tensors that arrive from it.
    """
    flat = [tensor.reshape(-1) for tensors in sent for tensor in tensors]
    outgoing = torch.cat([empty, *flat])
    incoming_sizes = [[prod(shape) for shape in rank_shapes] for rank_shapes in shapes]
    incoming = outgoing.new_empty(sum(map(sum, incoming_sizes)))
    outgoing_sizes = [sum(tensor.numel() for tensor in tensors) for tensors in sent]
    received_sizes = list(map(sum, incoming_sizes))
    work = distributed.all_to_all_single(
        incoming, outgoing, received_sizes, outgoing_sizes, group=group, async_op=True
    )
    del flat
    yield
    work.wait()
    parts = iter(incoming.split([size for rank_sizes in incoming_sizes for size in rank_sizes]))
    return [iter([next(parts).view(shape) for shape in rank_shapes]) for rank_shapes in shapes]


Shape = tuple[int, ...]
Coordinates = tuple[int, ...]  # of a rank: its rank in the group of each sharded axis


class Gather:
    """A request for the whole matrices that this rank owns, in order.

    Args:
        shards: this rank's shard of each matrix; all have one shape and dtype.
        shape: the shape of a whole matrix.
        sharded_axes: the sharded axes that are gathered, outermost sharding first.
        leader: another request of the same step, with the same owners. The leader's tensors are
            sharded over the same groups of ranks, along any axes.
        cost: the work with one matrix, in any unit; by default its elements times its shorter side.
        batch: how many matrices the whole tensor has; by default as many as `shape` has. This rank
            may hold fewer: then `shape` differs between ranks, and `batch` does not.
        any_dtype: whether results have the dtype that the computation gives them, instead of the
            shards'. A rank that owns none then learns the dtype from a matrix without elements.
    """

    def __init__(
        self,
        shards: Sequence[Tensor],
        shape: Shape,
        sharded_axes: tuple[ShardedAxis, ...],
        leader: Gather | None = None,
        *,
        cost: float | None = None,
        batch: int | None = None,
        any_dtype: bool = False,
    ) -> None:
        self.shards, self.sharded_axes, self.leader = shards, sharded_axes, leader
        self.any_dtype = any_dtype
        self.cost = prod(shape) * min((1, *shape)[-2:]) if cost is None else cost
        batch = prod(shape[:-2]) if batch is None else batch
        ranks = prod(axis.shard_count for axis in sharded_axes)
        whole_bytes = shards[0].itemsize * batch * prod(shape[-2:]) * len(shards)
        self.held_bytes = whole_bytes // ranks if sharded_axes else 0
        """The bytes of whole matrices that a rank holds, about; equal on all ranks."""
        self.shapes = [shape]  # of a whole matrix, then of this rank's data after each sharding
        for axis in sharded_axes:
            shape = resized(shape, axis.dim, axis.sizes(shape[axis.dim])[axis.rank])
            self.shapes.append(shape)
        self.owners: list[Coordinates] = []  # one for each matrix

    def stand_ins(self) -> list[Tensor]:
        """Return the matrices that a rank gets if it owns none."""
        return [self.shards[0].new_empty(0, 0)] * self.any_dtype

    @property
    def tells_failures(self) -> bool:
        """True if the owners of these matrices tell the other ranks when they fail."""
        return bool(self.sharded_axes) and self.shards[0].device.type == "cpu"

    @property
    def owned_indices(self) -> list[int]:
        """The indices of the matrices that this rank owns."""
        own_coordinates = tuple(axis.rank for axis in self.sharded_axes)
        return [index for index, owner in enumerate(self.owners) if owner == own_coordinates]


class Scatter:
    """A request for this rank's shards of the results that owners computed from matrices.

    Args:
        results: the results, or any tensors of their shapes if there is an error.
        gathered: the request for the matrices.
        error: why this rank has no results.
    """

    def __init__(
        self, results: Sequence[Tensor], gathered: Gather, error: Exception | None = None
    ) -> None:
        self.gathered, self.error = gathered, error
        as_computed = gathered.any_dtype and len(results) > 0
        self.dtype = results[0].dtype if as_computed else gathered.shards[0].dtype
        owned = results[: len(gathered.owned_indices)]
        self.results = [matrix.to(self.dtype) for matrix in owned]


def resized(shape: Shape, dim: int, size: int) -> Shape:
    """Return a shape with another size in one dimension."""
    return (*shape[:dim], size, *shape[dim + 1 :])
