"""Choose the rank that computes each matrix of a step: its owner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from optgen.runtime.sharded.matrix_requests import Coordinates, Gather


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
