"""Test that whole matrices go to one rank each and their shards come back, however they are cut."""

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
    """One row or column of the grid of ranks. The ranks are threads here."""

    def __init__(self, size: int) -> None:
        self.barrier, self.sent = threading.Barrier(size), [Tensor()] * size
        self.counts: list[list[int]] = [[]] * size


class _Member:
    """A rank's view of its lane; takes the place of a process group."""

    def __init__(self, lane: _Lane, own: int) -> None:
        self.lane, self.own = lane, own


def _all_to_all_single(
    output: Tensor, source: Tensor, counts: list[int], sent: list[int], group: _Member
) -> None:
    lane = group.lane
    lane.sent[group.own], lane.counts[group.own] = source, sent
    lane.barrier.wait(10)
    parts = [
        tensor.split(sizes)[group.own] for tensor, sizes in zip(lane.sent, lane.counts, strict=True)
    ]
    assert [part.numel() for part in parts] == counts
    output.copy_(torch.cat(parts))
    lane.barrier.wait(10)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[_Member]:
    """Return the groups of all collectives that were called; they run between threads."""
    made: list[_Member] = []

    class Distributed:
        @staticmethod
        def all_to_all_single(*args: Any, group: _Member) -> None:
            made.append(group)
            _all_to_all_single(*args, group=group)

    monkeypatch.setattr(all_to_all, "distributed", Distributed)
    return made


def _cuts(
    how: tuple[tuple[int, int], ...], place: tuple[int, ...], lanes: Any
) -> tuple[ShardedAxis, ...]:
    return tuple(ShardedAxis(lanes[dim], axis, GRID[dim], place[dim]) for dim, axis in how)


def _part(tensor: Tensor, cuts: tuple[ShardedAxis, ...]) -> Tensor:
    for cut in cuts:
        tensor = tensor.split(cut.sizes(tensor.shape[cut.dim]), cut.dim)[cut.rank]
    return tensor


def _on_grid(function: Any) -> list[Any]:
    """Call a function on every rank with its place and its lane along each dimension."""
    lanes = [{at: _Lane(GRID[dim]) for at in range(GRID[1 - dim])} for dim in range(2)]
    places = list(product(*map(range, GRID)))
    with ThreadPoolExecutor(len(places)) as pool:
        asked = [
            pool.submit(
                function,
                place,
                [_Member(lanes[dim][place[1 - dim]], place[dim]) for dim in range(2)],
            )
            for place in places
        ]
        return [future.result(30) for future in asked]


def test_matrices_come_whole_and_their_parts_go_back(calls: list[_Member]) -> None:
    whole = {
        (name, shape): [torch.randn(shape) for _ in range(5)]
        for name, shape in product(CUTS, SHAPES)
    }

    def on_rank(place: tuple[int, ...], lanes: list[Any]) -> dict[Any, int]:
        cuts = {name: _cuts(how, place, lanes) for name, how in CUTS.items()}
        requests = {
            (name, shape): Gather([_part(t, cuts[name]) for t in tensors], shape, cuts[name])
            for (name, shape), tensors in whole.items()
        }
        found = dict(zip(requests, gather(list(requests.values())), strict=True))
        for key, tensors in found.items():
            owned = [whole[key][index] for index in requests[key].owned]
            assert all(map(torch.equal, tensors, owned))
        made = [Scatter([-2 * t for t in found[key]], requests[key]) for key in requests]
        for (name, shape), parts in zip(requests, scatter(made), strict=True):
            expected = [-2 * _part(t, cuts[name]) for t in whole[name, shape]]
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

    def on_rank(place: tuple[int, ...], lanes: list[Any]) -> tuple[list[int], list[int]]:
        first, other = (_cuts(CUTS[name], place, lanes) for name in ("both", follower))
        leader = Gather([_part(t, first) for t in params], (7, 5), first)
        request = Gather([_part(t, other) for t in states], (5, 5), other, leader)
        whole, found = gather([leader, request])
        assert all(map(torch.equal, whole, [params[index] for index in leader.owned]))
        assert all(map(torch.equal, found, [states[index] for index in leader.owned]))
        (parts,) = scatter([Scatter([-t for t in found], request)])
        assert all(map(torch.equal, parts, [-_part(t, other) for t in states]))
        return leader.owned, request.owned

    owned = _on_grid(on_rank)

    assert all(ours == theirs for ours, theirs in owned)
    assert sorted(index for ours, _ in owned for index in ours) == list(range(5))


def test_work_is_shared_out_by_its_size(calls: list[_Member]) -> None:
    def on_rank(place: tuple[int, ...], lanes: list[Any]) -> list[list[int]]:
        cuts = _cuts(((1, 0),), place, lanes)
        requests = [
            Gather([_part(torch.zeros(shape), cuts)] * count, shape, cuts)
            for shape, count in (((9, 9), 2), ((3, 3), 4))
        ]
        gather(requests)
        return [request.owned for request in requests]

    owned = _on_grid(on_rank)[: GRID[1]]

    assert owned == [[[0], []], [[1], []], [[], [0, 1, 2, 3]]]


def test_matrices_of_which_nothing_is_cut_stay(calls: list[_Member]) -> None:
    tensors = [torch.randn(2, 3, 4) for _ in range(2)]
    request = Gather(tensors, (6, 3, 4), ())

    assert all(map(torch.equal, gather([request])[0], tensors))
    assert all(map(torch.equal, scatter([Scatter(tensors, request)])[0], tensors))
    assert not calls


class _Mesh:
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
