"""Test that each matrix goes whole to one rank, and that its shards come back."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from optgen.runtime.sharded import all_to_all
from optgen.runtime.sharded.all_to_all import gather, scatter
from optgen.runtime.sharded.matrix_requests import Gather, Scatter
from optgen.runtime.tensors.sharding import ShardedAxis, Sharding

GRID = (2, 3)
FSDP2 = "rows twice, as FSDP2 and tensor parallel"
CUTS = {
    "rows": ((0, 0),),  # mesh dimension, tensor axis; in the order of the cuts
    "columns": ((1, 1),),
    "both": ((0, 0), (1, 1)),
    "both, the other way round": ((0, 1), (1, 0)),
    "rows twice": ((0, 0), (1, 0)),
    FSDP2: ((1, 0), (0, 0)),
}
SHAPES = ((7, 5), (1, 4), (6, 6), (2, 9))  # the first leaves unequal shards, the second empty ones


class _Lane:
    """A row or column of the grid of ranks, which are threads of this process."""

    def __init__(self, size: int) -> None:
        self.barrier, self.sent = threading.Barrier(size), [Tensor()] * size
        self.counts: list[list[int]] = [[]] * size


class _Member:
    """A rank's view of its lane; stands in for a process group."""

    def __init__(self, lane: _Lane, rank: int) -> None:
        self.lane, self.rank = lane, rank


def _all_to_all_single(
    output: Tensor, source: Tensor, counts: list[int], sent: list[int], group: _Member
) -> None:
    """Exchange parts between the threads of a lane, as torch's collective does between ranks."""
    lane = group.lane
    lane.sent[group.rank], lane.counts[group.rank] = source, sent
    lane.barrier.wait(10)
    parts = [
        tensor.split(sizes)[group.rank]
        for tensor, sizes in zip(lane.sent, lane.counts, strict=True)
    ]
    assert [part.numel() for part in parts] == counts
    output.copy_(torch.cat(parts))
    lane.barrier.wait(10)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[_Member]:
    """Let threads play the ranks; return a list that gets the group of each collective."""
    groups: list[_Member] = []

    class Distributed:
        @staticmethod
        def all_to_all_single(*args: Any, group: _Member) -> None:
            groups.append(group)
            _all_to_all_single(*args, group=group)

    monkeypatch.setattr(all_to_all, "distributed", Distributed)
    return groups


def _cuts(
    mesh_and_tensor_axes: tuple[tuple[int, int], ...], coordinates: tuple[int, ...], lanes: Any
) -> tuple[ShardedAxis, ...]:
    return tuple(
        ShardedAxis(lanes[dim], axis, GRID[dim], coordinates[dim])
        for dim, axis in mesh_and_tensor_axes
    )


def _shard(tensor: Tensor, cuts: tuple[ShardedAxis, ...]) -> Tensor:
    """Return a rank's shard of a tensor."""
    for cut in cuts:
        tensor = tensor.split(cut.sizes(tensor.shape[cut.dim]), cut.dim)[cut.rank]
    return tensor


def _on_grid(function: Any) -> list[Any]:
    """Call a function on every rank with its coordinates and its lane along each dimension."""
    lanes = [{index: _Lane(GRID[dim]) for index in range(GRID[1 - dim])} for dim in range(2)]
    all_coordinates = list(product(*map(range, GRID)))
    with ThreadPoolExecutor(len(all_coordinates)) as pool:
        futures = [
            pool.submit(
                function,
                coordinates,
                [_Member(lanes[dim][coordinates[1 - dim]], coordinates[dim]) for dim in range(2)],
            )
            for coordinates in all_coordinates
        ]
        return [future.result(30) for future in futures]


def test_owners_get_whole_matrices_and_ranks_get_shards_back(calls: list[_Member]) -> None:
    whole = {
        (name, shape): [torch.randn(shape) for _ in range(5)]
        for name, shape in product(CUTS, SHAPES)
    }

    def on_rank(coordinates: tuple[int, ...], lanes: list[Any]) -> dict[Any, int]:
        cuts = {
            name: _cuts(mesh_and_tensor_axes, coordinates, lanes)
            for name, mesh_and_tensor_axes in CUTS.items()
        }
        requests = {
            (name, shape): Gather([_shard(t, cuts[name]) for t in tensors], shape, cuts[name])
            for (name, shape), tensors in whole.items()
        }
        found = dict(zip(requests, gather(list(requests.values())), strict=True))
        for key, tensors in found.items():
            owned = [whole[key][index] for index in requests[key].owned_indices]
            assert all(map(torch.equal, tensors, owned))
        scatters = [Scatter([-2 * t for t in found[key]], requests[key]) for key in requests]
        for (name, shape), parts in zip(requests, scatter(scatters), strict=True):
            expected = [-2 * _shard(t, cuts[name]) for t in whole[name, shape]]
            assert all(map(torch.equal, parts, expected))
        return {key: len(tensors) for key, tensors in found.items()}

    owned = _on_grid(on_rank)

    for name, shape in whole:
        ranks = torch.tensor(GRID)[[dim for dim, _ in CUTS[name]]].prod().item()
        copies = len(owned) // ranks  # lanes that hold shards of the same matrices
        assert sum(counts[name, shape] for counts in owned) == 5 * copies
    # The first cut and the second, along two dimensions each, there and back.
    assert len(calls) == len(owned) * 2 * 2 * 2


@pytest.mark.parametrize("follower", ["both, the other way round", FSDP2])
def test_a_request_takes_the_owners_of_its_leader(calls: list[_Member], follower: str) -> None:
    params, states = ([torch.randn(shape) for _ in range(5)] for shape in ((7, 5), (5, 5)))

    def on_rank(coordinates: tuple[int, ...], lanes: list[Any]) -> tuple[list[int], list[int]]:
        first, other = (_cuts(CUTS[name], coordinates, lanes) for name in ("both", follower))
        leader = Gather([_shard(t, first) for t in params], (7, 5), first)
        request = Gather([_shard(t, other) for t in states], (5, 5), other, leader)
        whole, found = gather([leader, request])
        assert all(map(torch.equal, whole, [params[index] for index in leader.owned_indices]))
        assert all(map(torch.equal, found, [states[index] for index in leader.owned_indices]))
        (parts,) = scatter([Scatter([-t for t in found], request)])
        assert all(map(torch.equal, parts, [-_shard(t, other) for t in states]))
        return leader.owned_indices, request.owned_indices

    owned = _on_grid(on_rank)

    assert all(ours == theirs for ours, theirs in owned)
    assert sorted(index for ours, _ in owned for index in ours) == list(range(5))


def test_matrices_are_assigned_to_ranks_by_size(calls: list[_Member]) -> None:
    def on_rank(coordinates: tuple[int, ...], lanes: list[Any]) -> list[list[int]]:
        cuts = _cuts(((1, 0),), coordinates, lanes)
        requests = [
            Gather([_shard(torch.zeros(shape), cuts)] * count, shape, cuts)
            for shape, count in (((9, 9), 2), ((3, 3), 4))
        ]
        gather(requests)
        return [request.owned_indices for request in requests]

    owned = _on_grid(on_rank)[: GRID[1]]

    assert owned == [[[0], []], [[1], []], [[], [0, 1, 2, 3]]]


def test_matrices_that_are_not_cut_are_not_sent(calls: list[_Member]) -> None:
    tensors = [torch.randn(2, 3, 4) for _ in range(2)]
    request = Gather(tensors, (6, 3, 4), ())

    assert all(map(torch.equal, gather([request])[0], tensors))
    assert all(map(torch.equal, scatter([Scatter(tensors, request)])[0], tensors))
    assert not calls


class _Mesh:
    """A mesh whose process groups are strings with their dimension."""

    ndim = 2

    def size(self, dim: int) -> int:
        return GRID[dim]

    def get_group(self, dim: int) -> str:
        return f"along {dim}"

    def get_local_rank(self, dim: int) -> int:
        return dim


def test_the_order_of_cuts_is_torchs() -> None:
    placement_types = pytest.importorskip("torch.distributed.tensor.placement_types")
    shard, replicate = placement_types.Shard, placement_types.Replicate
    strided = placement_types._StridedShard

    def order(*placements: Any) -> list[str]:
        return [cut.group for cut in Sharding(_Mesh(), placements).sharded_axes()]

    assert order(shard(0), shard(0)) == order(shard(0), shard(1)) == ["along 0", "along 1"]
    assert order(strided(0, split_factor=3), shard(0)) == ["along 1", "along 0"]
    assert order(replicate(), shard(1)) == ["along 1"]
    assert order(replicate(), replicate()) == []
