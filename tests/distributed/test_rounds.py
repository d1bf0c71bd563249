"""Test the rounds in which matrices travel: their order, their bytes, their bits, and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from distributed import pair
from distributed.collectives import count_sent_bytes
from distributed.shards import shard
from distributed.whole_matrices import optimizer_class
from torch import distributed, nn

from optgen.optim import SOAP, Muon
from optgen.runtime import newton_schulz
from optgen.runtime.eager import tensor_lists
from optgen.runtime.eager.owner_step import OwnerStep
from optgen.runtime.sharded import driver

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

MATRICES, ROWS, COLS = 12, 12, 20
ELEMENTS = MATRICES * ROWS * COLS
FLOAT32, BFLOAT16 = 4, 2


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[Callable[..., list[Any]]]:
    with pair.processes(4) as run:
        yield run


def _optimizers(cls: Any, mesh: Any, **options: Any) -> tuple[Any, Any]:
    """Return an optimizer of sharded matrices, and one of equal whole matrices."""
    from torch.distributed.tensor import Shard

    torch.manual_seed(0)
    drawn = [torch.randn(ROWS, COLS) for _ in range(MATRICES)]
    sharded = [nn.Parameter(shard(value, Shard(0), mesh)) for value in drawn]
    return cls(sharded, **options), cls([nn.Parameter(value) for value in drawn], **options)


def _step(*optimizers: Any) -> None:
    for optimizer in optimizers:
        for param in optimizer.param_groups[0]["params"]:
            param.grad = torch.cos(param.detach())
        optimizer.step()


def _unequal_params(ours: Any, alone: Any) -> int:
    pairs = zip(ours.param_groups[0]["params"], alone.param_groups[0]["params"], strict=True)
    return sum(not torch.equal(each.full_tensor(), whole) for each, whole in pairs)


def _in_rounds(rank: int, ranks: int, cls: Any, options: dict[str, Any]) -> Any:
    """Step in rounds of `ranks` matrices; return the bytes sent and how many params differ."""
    from torch.distributed import DeviceMesh

    found = None
    mesh = DeviceMesh("cpu", list(range(ranks)))
    if rank < ranks:
        ours, alone = _optimizers(cls, mesh, **options)
        with (
            mock.patch.object(driver, "ROUND_BYTES", 1),
            mock.patch.object(driver, "HELD_BYTES", 2 * ROWS * COLS * FLOAT32),
            mock.patch.object(tensor_lists, "BATCHED_ELEMENTS", 0),  # batches round differently
        ):
            _step(ours, alone)
            with count_sent_bytes() as sent:
                _step(ours, alone)
        found = sent, _unequal_params(ours, alone)
    distributed.barrier()
    return found


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}], ids=str)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_muon_sends_shards_and_half_as_much_back(
    ranks: int, options: Any, four_ranks: Callable[..., list[Any]]
) -> None:
    shards_to_others = ELEMENTS * (ranks - 1) // ranks**2  # by one rank, in one direction
    rounds = MATRICES // ranks
    flags = rounds * (ranks - 1)
    for sent, unequal in four_ranks(_in_rounds, ranks, Muon, options)[:ranks]:
        assert len(sent) == 2 * rounds
        assert sum(sent) == shards_to_others * (FLOAT32 + BFLOAT16) + flags * BFLOAT16
        assert unequal == 0


def test_soap_sends_all_states_and_all_but_the_gradient_back(
    four_ranks: Callable[..., list[Any]],
) -> None:
    ranks, like, squares = 4, 4, 2  # p, the gradient and two moments; two Gram and two bases
    travelling = like * ROWS * COLS + squares * (ROWS**2 + COLS**2)
    back = travelling - ROWS * COLS
    expected = MATRICES * (travelling + back) * (ranks - 1) // ranks**2
    flags = MATRICES // ranks * (ranks - 1)
    for sent, unequal in four_ranks(_in_rounds, ranks, SOAP, {"foreach": True}):
        assert sum(sent) == FLOAT32 * (expected + flags)
        assert unequal == 0


def _events(rank: int, options: dict[str, Any]) -> tuple[list[str], int]:
    """Return, for each product of a step, how many transfers are on their way meanwhile."""
    events: list[str] = []
    real_exchange, real_iterate = distributed.all_to_all_single, newton_schulz.iterate

    def exchange(*args: Any, **options: Any) -> Any:
        events.append("starts")
        work = real_exchange(*args, **options)

        def wait() -> None:
            events.append("waits")
            work.wait()

        return mock.Mock(wait=wait)

    def iterate(*args: Any) -> Any:
        events.append("computes")
        return real_iterate(*args)

    ours, alone = _optimizers(Muon, distributed.init_device_mesh("cpu", (2,)), **options)
    with (
        mock.patch.object(driver, "ROUND_BYTES", 1),
        mock.patch.object(driver, "HELD_BYTES", 2 * ROWS * COLS * FLOAT32),
        mock.patch.object(distributed, "all_to_all_single", exchange),
        mock.patch.object(newton_schulz, "iterate", iterate),
    ):
        _step(ours)
    _step(alone)
    return events, _unequal_params(ours, alone)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}], ids=str)
def test_matrices_travel_while_others_are_computed_with(options: Any) -> None:
    begin = ["starts"] * 2  # the shards of two rounds
    first = ["waits", "computes", "starts", "starts"]  # results, and the shards of another round
    for events, unequal in pair.run(_events, options):
        assert events[: len(begin + first)] == begin + first
        travelling, during_products = 0, []
        for event in events:
            travelling += {"starts": 1, "waits": -1, "computes": 0}[event]
            during_products += [travelling] if event == "computes" else []
        assert during_products == [1, *[2] * (MATRICES // 2 - 2), 1], events
        assert events.count("computes") == MATRICES // 2
        assert unequal == 0


def _failure(rank: int) -> tuple[str, bool, list[float], int]:
    """Let rank 1 fail with its matrices; return the error, and step again."""
    mesh = distributed.init_device_mesh("cpu", (2,))
    ours, alone = _optimizers(optimizer_class("shampoo"), mesh, foreach=True)
    _step(ours, alone)
    params = ours.param_groups[0]["params"]
    before = [param.to_local().clone() for param in params]
    real = OwnerStep._call

    def call(self: Any, *args: Any) -> Any:
        if rank == 1:
            raise ArithmeticError("no eigenvectors")
        return (yield from real(self, *args))

    with (
        mock.patch.object(OwnerStep, "_call", call),
        pytest.raises((RuntimeError, ArithmeticError)) as caught,
    ):
        _step(ours)
    unchanged = all(map(torch.equal, (param.to_local() for param in params), before))
    steps = [float(ours.state[param]["step"]) for param in params if "step" in ours.state[param]]
    _step(ours, alone)
    return str(caught.value), unchanged, steps, _unequal_params(ours, alone)


def test_an_owner_that_fails_tells_the_others_and_nothing_changes() -> None:
    expected = ("another rank failed in the middle of this step", "no eigenvectors")
    found = pair.run(_failure, limit=20)  # a rank that waits for another one takes longer
    for (message, unchanged, steps, unequal), text in zip(found, expected, strict=True):
        assert text in message
        assert unchanged
        assert set(steps) <= {1.0}
        assert unequal == 0
