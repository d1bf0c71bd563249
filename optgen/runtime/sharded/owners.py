"""Choose the rank that computes with each matrix, so that all ranks have about equal work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from optgen.runtime.sharded.all_to_all import Coordinates, Gather


class Owners:
    """The work of each rank in a step so far."""

    def __init__(self) -> None:
        self._loads: dict[tuple[ProcessGroup, ...], list[float]] = {}

    def choose(self, requests: Iterable[Gather]) -> None:
        """Give each matrix to the rank with the least work so far, the costliest matrices first.

        All ranks find the same owners, because a cost follows from shapes alone.
        """
        listed = list(requests)
        leaders = [request for request in listed if request.leader is None]
        for request in sorted(leaders, key=lambda each: -each.cost):
            self._choose(request)
        for request in listed:
            if request.leader is not None:
                request.owners = _owners_like(request, request.leader)

    def _choose(self, request: Gather) -> None:
        shard_counts = [axis.shard_count for axis in request.sharded_axes]
        groups = tuple(axis.group for axis in request.sharded_axes)
        load = self._loads.setdefault(groups, [0.0] * prod(shard_counts))
        for _ in request.shards:
            owner = load.index(min(load))
            load[owner] += request.cost
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
