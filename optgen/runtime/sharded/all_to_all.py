"""Matrices as a whole, each on one rank of those that hold its parts; and the parts of results.

A matrix word needs whole matrices, and its work grows faster than they do: so the ranks share the
matrices of a step out among them. Parts travel to the rank that computes with them and back, by one
all_to_all each way for every way in which the parameters are cut. A rank sends and receives about
as much as it holds; with an all_gather it would receive everything, and compute everything.
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

Shape = tuple[int, ...]
Held = dict[int, Tensor]  # what a rank has of the matrices, by their places in the request


class Gather:
    """A request for whole matrices: those that this rank shall compute with, in order.

    Args:
        parts: this rank's part of each; all are of one shape and dtype.
        whole: the shape of the parameters.
        cuts: how their rows and columns are cut, the first cut first.
    """

    def __init__(
        self, parts: Sequence[Tensor], whole: Shape, cuts: tuple[ShardedAxis, ...]
    ) -> None:
        self.parts, self.cuts = parts, cuts
        shape = (*parts[0].shape[:-2], *whole[-2:])
        self.shapes = [shape]  # before the first cut, and of what is here after each
        for cut in cuts:
            shape = _resized(shape, cut.axis, cut.sizes(shape[cut.axis])[cut.own])
            self.shapes.append(shape)
        self.owners: list[Shape] = []  # of each matrix: a place in the group of every cut

    @property
    def owned(self) -> list[int]:
        """The places of the matrices that this rank computes with."""
        here = tuple(cut.own for cut in self.cuts)
        return [place for place, owner in enumerate(self.owners) if owner == here]


class Scatter:
    """A request for this rank's parts of what its owners made of gathered matrices."""

    def __init__(self, made: Sequence[Tensor], gathered: Gather) -> None:
        self.gathered = gathered
        # A rank that owns none must know the dtype as well: that of what was gathered.
        self.made = [matrix.to(gathered.parts[0].dtype) for matrix in made]


def gather(requests: Sequence[Gather]) -> list[list[Tensor]]:
    """Answer all of a step's requests: the matrices that this rank owns, for each of them."""
    _share_out(requests)
    held: list[Held] = [dict(enumerate(request.parts)) for request in requests]
    for depth in range(1, _depth(requests) + 1):
        for group, places in _batches(requests, -depth):
            _collect(group, [(requests[place], held[place]) for place in places], -depth)
    return [list(matrices.values()) for matrices in held]


def scatter(requests: Sequence[Scatter]) -> list[list[Tensor]]:
    """Answer all of a step's requests: this rank's part of every matrix, for each of them."""
    gathered = [request.gathered for request in requests]
    held = [dict(zip(r.gathered.owned, r.made, strict=True)) for r in requests]
    for level in range(_depth(gathered)):
        for group, places in _batches(gathered, level):
            _distribute(group, [(gathered[place], held[place]) for place in places], level)
    return [list(matrices.values()) for matrices in held]


def _share_out(requests: Iterable[Gather]) -> None:
    """Give each matrix to the rank that has least to do yet; every rank comes to the same."""
    loads: dict[tuple[ProcessGroup, ...], list[int]] = {}
    for request in requests:
        counts = [cut.pieces for cut in request.cuts]
        known = loads.setdefault(tuple(cut.group for cut in request.cuts), [0] * prod(counts))
        cost = prod(request.shapes[0]) * min(request.shapes[0][-2:])
        for _ in request.parts:
            owner = known.index(min(known))
            known[owner] += cost
            request.owners.append(_coordinates(owner, counts))


def _coordinates(index: int, counts: Sequence[int]) -> Shape:
    found = []
    for count in reversed(counts):
        index, place = divmod(index, count)
        found.append(place)
    return tuple(reversed(found))


def _depth(requests: Iterable[Gather]) -> int:
    return max((len(request.cuts) for request in requests), default=0)


def _batches(requests: Sequence[Gather], level: int) -> Iterable[tuple[ProcessGroup, list[int]]]:
    """Which requests one collective answers: those cut over one group there, of one dtype."""
    batches: dict[tuple[ProcessGroup, torch.dtype], list[int]] = {}
    for place, request in enumerate(requests):
        if -len(request.cuts) <= level < len(request.cuts):
            key = (request.cuts[level].group, request.parts[0].dtype)
            batches.setdefault(key, []).append(place)
    return [(group, places) for (group, _), places in batches.items()]


def _collect(group: ProcessGroup, moved: list[tuple[Gather, Held]], level: int) -> None:
    """Undo one cut: each matrix held in pieces by the group goes to its owner's place there."""
    ranks = range(moved[0][0].cuts[level].pieces)
    sent: list[list[Tensor]] = [[] for _ in ranks]
    shapes: list[list[Shape]] = [[] for _ in ranks]
    for request, held in moved:
        cut, outer = request.cuts[level], request.shapes[level - 1]
        for place, piece in held.items():
            sent[request.owners[place][level]].append(piece)
        kept = [place for place in held if request.owners[place][level] == cut.own]
        for rank, size in enumerate(cut.sizes(outer[cut.axis])):
            shapes[rank] += [_resized(outer, cut.axis, size)] * len(kept)
    found = [iter(tensors) for tensors in _swap(group, sent, shapes, moved[0][0].parts[0])]
    for request, held in moved:
        cut = request.cuts[level]
        kept = [place for place in held if request.owners[place][level] == cut.own]
        pieces = {place: [next(tensors) for tensors in found] for place in kept}
        held.clear()
        held.update((place, torch.cat(those, cut.axis)) for place, those in pieces.items())


def _distribute(group: ProcessGroup, moved: list[tuple[Gather, Held]], level: int) -> None:
    """Cut anew what this rank has, and send the group the pieces."""
    ranks = range(moved[0][0].cuts[level].pieces)
    sent: list[list[Tensor]] = [[] for _ in ranks]
    shapes: list[list[Shape]] = [[] for _ in ranks]
    for request, held in moved:
        cut, outer = request.cuts[level], request.shapes[level]
        for matrix in held.values():
            for rank, piece in enumerate(matrix.split(cut.sizes(outer[cut.axis]), cut.axis)):
                sent[rank].append(piece)
        for rank in ranks:
            shapes[rank] += [request.shapes[level + 1]] * len(_known(request, level, rank))
    found = [iter(tensors) for tensors in _swap(group, sent, shapes, moved[0][0].parts[0])]
    for request, held in moved:
        known = {place: rank for rank in ranks for place in _known(request, level, rank)}
        come = {place: next(found[rank]) for place, rank in known.items()}
        held.clear()
        held.update(sorted(come.items()))  # in the order in which the next cut will look for them


def _known(request: Gather, level: int, rank: int) -> list[int]:
    """The matrices of which a rank of the group has what it had of them before a cut."""
    there = (rank, *(cut.own for cut in request.cuts[level + 1 :]))
    return [place for place, owner in enumerate(request.owners) if owner[level:] == there]


def _swap(
    group: ProcessGroup, sent: list[list[Tensor]], shapes: list[list[Shape]], like: Tensor
) -> list[tuple[Tensor, ...]]:
    """Send each rank of a group its tensors; return what came from each, of the given shapes."""
    every = [tensor.reshape(-1) for tensors in sent for tensor in tensors]
    flat = torch.cat([like.new_empty(0), *every])
    counts = [[prod(shape) for shape in listed] for listed in shapes]
    come = flat.new_empty(sum(map(sum, counts)))
    gone = [sum(tensor.numel() for tensor in tensors) for tensors in sent]
    distributed.all_to_all_single(come, flat, list(map(sum, counts)), gone, group=group)
    parts = iter(come.split([count for listed in counts for count in listed]))
    return [tuple(next(parts).view(shape) for shape in listed) for listed in shapes]


def _resized(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])
