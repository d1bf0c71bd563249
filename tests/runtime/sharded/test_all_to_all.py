"""Test that one rank gets each matrix whole, and that all ranks get their shards back."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from optgen.runtime.sharded import all_to_all
from optgen.runtime.sharded.all_to_all import Gather, Scatter, start_gather, start_scatter
from optgen.runtime.sharded.owners import Owners
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


class _ThreadGroup:
    """Memory that a row or column of ranks shares; the ranks are threads of this process."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.sources = [Tensor()] * size
        self.counts: list[list[int]] = [[]] * size


class _ProcessGroup:
    """A rank's handle on a thread group; stands in for torch's process group."""

    def __init__(self, shared: _ThreadGroup, rank: int) -> None:
        self.shared, self.rank = shared, rank


class _Work:
    """A collective of a thread group, which has ended when it begins."""

    def wait(self) -> None:
        pass


def _gather(requests: list[Gather]) -> list[list[Tensor]]:
    Owners().choose(requests)
    return start_gather(requests).matrices()


def _scatter(requests: list[Scatter]) -> list[list[Tensor]]:
    transfer = start_scatter(requests)
    shards = transfer.matrices()
    assert not transfer.failed
    return shards


def _all_to_all_single(
    output: Tensor, source: Tensor, counts: list[int], sent_counts: list[int], group: _ProcessGroup
) -> None:
    """Exchange parts between the threads of a group, as torch's collective does between ranks."""
    shared = group.shared
    shared.sources[group.rank], shared.counts[group.rank] = source, sent_counts
    shared.barrier.wait(10)
    parts = [
        tensor.split(sizes)[group.rank]
        for tensor, sizes in zip(shared.sources, shared.counts, strict=True)
    ]
    assert [part.numel() for part in parts] == counts
    output.copy_(torch.cat(parts))
    shared.barrier.wait(10)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[_ProcessGroup]:
    """Let threads play the ranks; return a list that gets the group of each collective."""
    groups: list[_ProcessGroup] = []

    class Distributed:
        @staticmethod
        def all_to_all_single(*args: Any, group: _ProcessGroup, async_op: bool) -> _Work:
            assert async_op
            groups.append(group)
            _all_to_all_single(*args, group=group)
            return _Work()

    monkeypatch.setattr(all_to_all, "distributed", Distributed)
    return groups


def _sharded_axes(
    mesh_and_tensor_axes: tuple[tuple[int, int], ...], coordinates: tuple[int, ...], groups: Any
) -> tuple[ShardedAxis, ...]:
    return tuple(
        ShardedAxis(groups[dim], axis, GRID[dim], coordinates[dim])
        for dim, axis in mesh_and_tensor_axes
    )


def _shard_of(tensor: Tensor, cuts: tuple[ShardedAxis, ...]) -> Tensor:
    """Return a rank's shard of a tensor."""
    for cut in cuts:
        tensor = tensor.split(cut.sizes(tensor.shape[cut.dim]), cut.dim)[cut.rank]
    return tensor


def _call_on_all_ranks(function: Any) -> list[Any]:
    """Call a function on every rank with its coordinates and its group along each dimension."""
    groups = [
        {index: _ThreadGroup(GRID[dim]) for index in range(GRID[1 - dim])} for dim in range(2)
    ]
    all_coordinates = list(product(*map(range, GRID)))
    with ThreadPoolExecutor(len(all_coordinates)) as pool:
        futures = [
            pool.submit(
                function,
                coordinates,
                [
                    _ProcessGroup(groups[dim][coordinates[1 - dim]], coordinates[dim])
                    for dim in range(2)
                ],
            )
            for coordinates in all_coordinates
        ]
        return [future.result(30) for future in futures]


def test_owners_get_whole_matrices_and_ranks_get_shards_back(calls: list[_ProcessGroup]) -> None:
    whole = {
        (name, shape): [torch.randn(shape) for _ in range(5)]
        for name, shape in product(CUTS, SHAPES)
    }

    def on_rank(coordinates: tuple[int, ...], groups: list[Any]) -> dict[Any, int]:
        cuts = {
            name: _sharded_axes(mesh_and_tensor_axes, coordinates, groups)
            for name, mesh_and_tensor_axes in CUTS.items()
        }
        requests = {
            (name, shape): Gather([_shard_of(t, cuts[name]) for t in tensors], shape, cuts[name])
            for (name, shape), tensors in whole.items()
        }
        gathered = dict(zip(requests, _gather(list(requests.values())), strict=True))
        for key, tensors in gathered.items():
            expected = [whole[key][index] for index in requests[key].owned_indices]
            assert all(map(torch.equal, tensors, expected))
        scatters = [Scatter([-2 * t for t in gathered[key]], requests[key]) for key in requests]
        for (name, shape), shards in zip(requests, _scatter(scatters), strict=True):
            expected = [-2 * _shard_of(t, cuts[name]) for t in whole[name, shape]]
            assert all(map(torch.equal, shards, expected))
        return {key: len(tensors) for key, tensors in gathered.items()}

    counts_of_ranks = _call_on_all_ranks(on_rank)

    for name, shape in whole:
        ranks_per_copy = math.prod(GRID[dim] for dim, _ in CUTS[name])
        copies = len(counts_of_ranks) // ranks_per_copy  # of each matrix, on the whole grid
        assert sum(counts[name, shape] for counts in counts_of_ranks) == 5 * copies
    # Each rank exchanges for a first cut and a second, along two mesh dimensions, there and back.
    assert len(calls) == len(counts_of_ranks) * 2 * 2 * 2


@pytest.mark.parametrize("follower", ["both, the other way round", FSDP2])
def test_a_request_takes_the_owners_of_its_leader(
    calls: list[_ProcessGroup], follower: str
) -> None:
    params, states = ([torch.randn(shape) for _ in range(5)] for shape in ((7, 5), (5, 5)))

    def on_rank(coordinates: tuple[int, ...], groups: list[Any]) -> tuple[list[int], list[int]]:
        leader_cuts, follower_cuts = (
            _sharded_axes(CUTS[name], coordinates, groups) for name in ("both", follower)
        )
        leader = Gather([_shard_of(t, leader_cuts) for t in params], (7, 5), leader_cuts)
        request = Gather(
            [_shard_of(t, follower_cuts) for t in states], (5, 5), follower_cuts, leader
        )
        whole_params, whole_states = _gather([leader, request])
        assert all(
            map(torch.equal, whole_params, [params[index] for index in leader.owned_indices])
        )
        assert all(
            map(torch.equal, whole_states, [states[index] for index in leader.owned_indices])
        )
        (shards,) = _scatter([Scatter([-t for t in whole_states], request)])
        assert all(map(torch.equal, shards, [-_shard_of(t, follower_cuts) for t in states]))
        return leader.owned_indices, request.owned_indices

    owned = _call_on_all_ranks(on_rank)

    assert all(of_leader == of_follower for of_leader, of_follower in owned)
    assert sorted(index for of_leader, _ in owned for index in of_leader) == list(range(5))


def test_matrices_are_assigned_to_ranks_by_size(calls: list[_ProcessGroup]) -> None:
    def on_rank(coordinates: tuple[int, ...], groups: list[Any]) -> list[list[int]]:
        cuts = _sharded_axes(((1, 0),), coordinates, groups)
        requests = [
            Gather([_shard_of(torch.zeros(shape), cuts)] * count, shape, cuts)
            for shape, count in (((9, 9), 2), ((3, 3), 4))
        ]
        _gather(requests)
        return [request.owned_indices for request in requests]

    owned = _call_on_all_ranks(on_rank)[: GRID[1]]

    assert owned == [[[0], []], [[1], []], [[], [0, 1, 2, 3]]]


def test_matrices_that_are_not_cut_are_not_sent(calls: list[_ProcessGroup]) -> None:
    tensors = [torch.randn(2, 3, 4) for _ in range(2)]
    request = Gather(tensors, (6, 3, 4), ())

    assert all(map(torch.equal, _gather([request])[0], tensors))
    assert all(map(torch.equal, _scatter([Scatter(tensors, request)])[0], tensors))
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
