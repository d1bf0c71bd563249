"""Redistribute sharded matrices so that each is whole on one rank, and scatter the results.

A matrix op needs whole matrices, and its work grows faster than their size. So the ranks divide the
matrices of a step among themselves: each matrix has one owner, which computes. Shards travel to the
owner and back by all_to_all, once in each direction for every sharded axis. A rank sends and
receives about as much as it holds. With all_gather, every rank would receive all matrices, and
compute with all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from optgen.runtime.tensors.sharding import ShardedAxis


HeldPieces = dict[int, Tensor]  # this rank's piece of each matrix, by its index in the request


def gather(requests: Sequence[Gather]) -> list[list[Tensor]]:
    """Return, for each request of a step, the whole matrices that this rank owns."""
    choose_owners(requests)
    held: list[HeldPieces] = [dict(enumerate(request.shards)) for request in requests]
    for level in range(-1, -_depth(requests) - 1, -1):
        for group, indices in _requests_by_group(requests, level):
            _unshard(group, [(requests[index], held[index]) for index in indices], level)
    return [list(matrices.values()) for matrices in held]


def scatter(requests: Sequence[Scatter]) -> list[list[Tensor]]:
    """Return, for each request of a step, this rank's shard of every matrix."""
    gathered = [request.gathered for request in requests]
    held: list[HeldPieces] = [
        dict(zip(request.gathered.owned_indices, request.results, strict=True))
        for request in requests
    ]
    for level in range(_depth(gathered)):
        for group, indices in _requests_by_group(gathered, level):
            _reshard(group, [(gathered[index], held[index]) for index in indices], level)
    return [list(matrices.values()) for matrices in held]


def _depth(requests: Iterable[Gather]) -> int:
    """Return how many levels of sharding the requests have at most."""
    return max((len(request.sharded_axes) for request in requests), default=0)


def _requests_by_group(
    requests: Sequence[Gather], level: int
) -> Iterable[tuple[ProcessGroup, list[int]]]:
    """Return the indices of the requests that one collective can answer, by group.

    Such requests are sharded over the same group at this level, and have one dtype. Level 0 is the
    outermost sharding, level -1 the innermost.
    """
    indices_by_key: dict[tuple[ProcessGroup, torch.dtype], list[int]] = {}
    for index, request in enumerate(requests):
        if -len(request.sharded_axes) <= level < len(request.sharded_axes):
            key = (request.sharded_axes[level].group, request.shards[0].dtype)
            indices_by_key.setdefault(key, []).append(index)
    return [(group, indices) for (group, _), indices in indices_by_key.items()]


def _unshard(group: ProcessGroup, pairs: list[tuple[Gather, HeldPieces]], level: int) -> None:
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
    received = [iter(tensors) for tensors in _exchange(group, sent, shapes, pairs[0][0].shards[0])]
    for request, held in pairs:
        axis = request.sharded_axes[level]
        stay_here = [index for index in held if request.owners[index][level] == axis.rank]
        pieces = {index: [next(tensors) for tensors in received] for index in stay_here}
        held.clear()
        held.update((index, torch.cat(each, axis.dim)) for index, each in pieces.items())


def _reshard(group: ProcessGroup, pairs: list[tuple[Gather, HeldPieces]], level: int) -> None:
    """Redo one sharding: split this rank's data, and send each rank of the group its pieces."""
    ranks = range(pairs[0][0].sharded_axes[level].shard_count)
    sent: list[list[Tensor]] = [[] for _ in ranks]
    shapes: list[list[Shape]] = [[] for _ in ranks]
    for request, held in pairs:
        axis, outer_shape = request.sharded_axes[level], request.shapes[level]
        sizes = axis.sizes(outer_shape[axis.dim])
        for matrix in held.values():
            for rank, piece in enumerate(matrix.split(sizes, axis.dim)):
                sent[rank].append(piece)
        for rank in ranks:
            shapes[rank] += [request.shapes[level + 1]] * len(_held_indices(request, level, rank))
    received = [iter(tensors) for tensors in _exchange(group, sent, shapes, pairs[0][0].shards[0])]
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
    group: ProcessGroup, sent: list[list[Tensor]], shapes: list[list[Shape]], like: Tensor
) -> list[tuple[Tensor, ...]]:
    """Send each rank of a group its tensors; return the tensors that each rank has sent here.

    `shapes` holds, for each rank, the shapes of the tensors that arrive from it.
    """
    flat = [tensor.reshape(-1) for tensors in sent for tensor in tensors]
    outgoing = torch.cat([like.new_empty(0), *flat])
    incoming_sizes = [[prod(shape) for shape in rank_shapes] for rank_shapes in shapes]
    incoming = outgoing.new_empty(sum(map(sum, incoming_sizes)))
    outgoing_sizes = [sum(tensor.numel() for tensor in tensors) for tensors in sent]
    distributed.all_to_all_single(
        incoming, outgoing, list(map(sum, incoming_sizes)), outgoing_sizes, group=group
    )
    parts = iter(incoming.split([size for rank_sizes in incoming_sizes for size in rank_sizes]))
    return [tuple(next(parts).view(shape) for shape in rank_shapes) for rank_shapes in shapes]


def choose_owners(requests: Iterable[Gather]) -> None:
    """Give each matrix to the rank with the least work so far; all ranks find the same owners."""
    loads: dict[tuple[ProcessGroup, ...], list[int]] = {}
    for request in requests:
        if request.leader:
            request.owners = _owners_like(request, request.leader)
            continue
        shard_counts = [axis.shard_count for axis in request.sharded_axes]
        groups = tuple(axis.group for axis in request.sharded_axes)
        load = loads.setdefault(groups, [0] * prod(shard_counts))
        # A matrix op costs about the elements of a matrix times its shorter side.
        cost = prod(request.shapes[0]) * min((1, *request.shapes[0])[-2:])
        for _ in request.shards:
            owner = load.index(min(load))
            load[owner] += cost
            request.owners.append(_coordinates(owner, shard_counts))


def _owners_like(request: Gather, leader: Gather) -> list[Coordinates]:
    """Return the leader's owners for a request whose sharded axes may have another order."""
    positions = {axis.group: position for position, axis in enumerate(leader.sharded_axes)}
    order = [positions[axis.group] for axis in request.sharded_axes]
    return [tuple(owner[position] for position in order) for owner in leader.owners]


def _coordinates(index: int, shard_counts: Sequence[int]) -> Coordinates:
    """Return an owner's rank in the group of each sharded axis, from its index among all ranks."""
    ranks = []
    for count in reversed(shard_counts):
        index, rank = divmod(index, count)
        ranks.append(rank)
    return tuple(reversed(ranks))


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
    """

    def __init__(
        self,
        shards: Sequence[Tensor],
        shape: Shape,
        sharded_axes: tuple[ShardedAxis, ...],
        leader: Gather | None = None,
    ) -> None:
        self.shards, self.sharded_axes, self.leader = shards, sharded_axes, leader
        self.shapes = [shape]  # of a whole matrix, then of this rank's data after each sharding
        for axis in sharded_axes:
            shape = resized(shape, axis.dim, axis.sizes(shape[axis.dim])[axis.rank])
            self.shapes.append(shape)
        self.owners: list[Coordinates] = []  # one for each matrix

    @property
    def owned_indices(self) -> list[int]:
        """The indices of the matrices that this rank owns."""
        own_coordinates = tuple(axis.rank for axis in self.sharded_axes)
        return [index for index, owner in enumerate(self.owners) if owner == own_coordinates]


class Scatter:
    """A request for this rank's shards of the results that owners computed from matrices."""

    def __init__(self, results: Sequence[Tensor], gathered: Gather) -> None:
        self.gathered = gathered
        # Results travel in the shards' dtype, the only one that a rank without matrices knows.
        self.results = [matrix.to(gathered.shards[0].dtype) for matrix in results]


def resized(shape: Shape, dim: int, size: int) -> Shape:
    """Return a shape with another size in one dimension."""
    return (*shape[:dim], size, *shape[dim + 1 :])
