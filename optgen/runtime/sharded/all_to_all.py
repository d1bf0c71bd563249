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

from optgen.runtime.sharded.choose_owners import choose_owners
from optgen.runtime.sharded.matrix_requests import Gather, Scatter, Shape, resized

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Held = dict[int, Tensor]  # this rank's data of each matrix, by the matrix's index in the request


def gather(requests: Sequence[Gather]) -> list[list[Tensor]]:
    """Return, for each request of a step, the whole matrices that this rank owns."""
    choose_owners(requests)
    held: list[Held] = [dict(enumerate(request.shards)) for request in requests]
    for depth in range(1, _depth(requests) + 1):
        for group, indices in _batches(requests, -depth):
            _unshard(group, [(requests[index], held[index]) for index in indices], -depth)
    return [list(matrices.values()) for matrices in held]


def scatter(requests: Sequence[Scatter]) -> list[list[Tensor]]:
    """Return, for each request of a step, this rank's shard of every matrix."""
    gathered = [request.gathered for request in requests]
    held = [dict(zip(r.gathered.owned_indices, r.results, strict=True)) for r in requests]
    for level in range(_depth(gathered)):
        for group, indices in _batches(gathered, level):
            _reshard(group, [(gathered[index], held[index]) for index in indices], level)
    return [list(matrices.values()) for matrices in held]


def _depth(requests: Iterable[Gather]) -> int:
    return max((len(request.sharded_axes) for request in requests), default=0)


def _batches(requests: Sequence[Gather], level: int) -> Iterable[tuple[ProcessGroup, list[int]]]:
    """Return the indices of the requests that one collective can answer, by group.

    Such requests are sharded over the same group at this level, and have one dtype. Level 0 is the
    outermost sharding, level -1 the innermost.
    """
    batches: dict[tuple[ProcessGroup, torch.dtype], list[int]] = {}
    for index, request in enumerate(requests):
        if -len(request.sharded_axes) <= level < len(request.sharded_axes):
            key = (request.sharded_axes[level].group, request.shards[0].dtype)
            batches.setdefault(key, []).append(index)
    return [(group, indices) for (group, _), indices in batches.items()]


def _unshard(group: ProcessGroup, pairs: list[tuple[Gather, Held]], level: int) -> None:
    """Undo one sharding: send the pieces of each matrix to its owner's rank in the group."""
    ranks = range(pairs[0][0].sharded_axes[level].shard_count)
    sent: list[list[Tensor]] = [[] for _ in ranks]
    shapes: list[list[Shape]] = [[] for _ in ranks]
    for request, held in pairs:
        axis, outer = request.sharded_axes[level], request.shapes[level - 1]
        for index, piece in held.items():
            sent[request.owners[index][level]].append(piece)
        stay_here = [index for index in held if request.owners[index][level] == axis.rank]
        for rank, size in enumerate(axis.sizes(outer[axis.dim])):
            shapes[rank] += [resized(outer, axis.dim, size)] * len(stay_here)
    received = [iter(tensors) for tensors in _exchange(group, sent, shapes, pairs[0][0].shards[0])]
    for request, held in pairs:
        axis = request.sharded_axes[level]
        stay_here = [index for index in held if request.owners[index][level] == axis.rank]
        pieces = {index: [next(tensors) for tensors in received] for index in stay_here}
        held.clear()
        held.update((index, torch.cat(each, axis.dim)) for index, each in pieces.items())


def _reshard(group: ProcessGroup, pairs: list[tuple[Gather, Held]], level: int) -> None:
    """Redo one sharding: split this rank's data, and send each rank of the group its pieces."""
    ranks = range(pairs[0][0].sharded_axes[level].shard_count)
    sent: list[list[Tensor]] = [[] for _ in ranks]
    shapes: list[list[Shape]] = [[] for _ in ranks]
    for request, held in pairs:
        axis, outer = request.sharded_axes[level], request.shapes[level]
        sizes = axis.sizes(outer[axis.dim])
        for matrix in held.values():
            for rank, piece in enumerate(matrix.split(sizes, axis.dim)):
                sent[rank].append(piece)
        for rank in ranks:
            shapes[rank] += [request.shapes[level + 1]] * len(_held_by(request, level, rank))
    received = [iter(tensors) for tensors in _exchange(group, sent, shapes, pairs[0][0].shards[0])]
    for request, held in pairs:
        senders = {index: rank for rank in ranks for index in _held_by(request, level, rank)}
        arrived = {index: next(received[rank]) for index, rank in senders.items()}
        held.clear()
        held.update(sorted(arrived.items()))  # the order that the next level expects


def _held_by(request: Gather, level: int, rank: int) -> list[int]:
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
    counts = [[prod(shape) for shape in rank_shapes] for rank_shapes in shapes]
    incoming = outgoing.new_empty(sum(map(sum, counts)))
    sizes = [sum(tensor.numel() for tensor in tensors) for tensors in sent]
    distributed.all_to_all_single(incoming, outgoing, list(map(sum, counts)), sizes, group=group)
    parts = iter(incoming.split([count for rank_counts in counts for count in rank_counts]))
    return [tuple(next(parts).view(shape) for shape in rank_shapes) for rank_shapes in shapes]
