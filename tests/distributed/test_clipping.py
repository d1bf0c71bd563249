"""Test clipping on two ranks: the norm is that of one process, however gradients are sharded."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from distributed import models, pair
from distributed.cases import SHARDED, difference, gradients, shard
from keyed.models import Still
from torch import Tensor, distributed, nn

from optgen.keyed import GradientClipping, GradientClippingOptimizer, KeyedOptimizerWrapper
from optgen.optim import AdamW

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

NORM, VALUE = GradientClipping.NORM, GradientClipping.VALUE


def _still(params: list[nn.Parameter], **options: Any) -> GradientClippingOptimizer:
    """Return an optimizer that clips gradients and leaves the parameters as they are."""
    named: dict[str, Tensor] = {str(index): param for index, param in enumerate(params)}
    return GradientClippingOptimizer(Still(named, {}, [{"params": params}]), **options)


def _with_gradients(mesh: Any, step: int, scale: float = 3.0) -> tuple[list[Any], list[Any]]:
    """Return sharded parameters, and equal whole ones, all with gradients."""
    ours, alone = [], []
    for (shape, placement), grad in zip(SHARDED, gradients(step, torch.float32), strict=True):
        whole = torch.zeros(shape)
        ours.append(nn.Parameter(shard(whole, placement, mesh)))
        alone.append(nn.Parameter(whole))
        if grad is not None:
            ours[-1].grad, alone[-1].grad = shard(grad * scale, placement, mesh), grad * scale
    return ours, alone


def _compared_with_one_process(
    rank: int, mesh: tuple[int, ...], norm_type: float
) -> tuple[float, int]:
    """Return the largest difference to torch on one process, and the number of all_reduce calls."""
    device_mesh = distributed.init_device_mesh("cpu", mesh)
    largest_error, calls = 0.0, 0
    for step, limit in enumerate((0.5, 4.0, 1e6)):
        ours, alone = _with_gradients(device_mesh, step)
        optimizer = _still(ours, clipping=NORM, max_gradient=limit, norm_type=norm_type)
        with patch.object(distributed, "all_reduce", wraps=distributed.all_reduce) as all_reduce:
            optimizer.step()
        calls = max(calls, all_reduce.call_count)
        total = nn.utils.clip_grad_norm_(alone, limit, norm_type)
        found = optimizer.last_total_grad_norm
        largest_error = max(largest_error, difference(found, total))
        pairs = zip(ours, alone, strict=True)
        largest_error = max(
            largest_error, *(difference(a.grad, b.grad) for a, b in pairs if b.grad is not None)
        )
    return largest_error, calls


@pytest.mark.parametrize("norm_type", [2.0, 3.0, torch.inf])
@pytest.mark.parametrize("mesh", [(2,), (1, 2), (2, 1)], ids=str)
def test_the_norm_is_that_of_one_process(mesh: tuple[int, ...], norm_type: float) -> None:
    """Shards are even, uneven, empty or replicated, and one tensor is plain.

    Tensors are cut along the mesh's last dimension. If its size is one, no all_reduce is needed.
    """
    for largest_error, calls in pair.run(_compared_with_one_process, mesh, norm_type):
        assert largest_error < 1e-6
        assert calls == (mesh[-1] > 1)


def _by_value(rank: int) -> float:
    ours, alone = _with_gradients(distributed.init_device_mesh("cpu", (2,)), 0)
    _still(ours, clipping=VALUE, max_gradient=1.0).step()
    nn.utils.clip_grad_value_(alone, 1.0)
    pairs = zip(ours, alone, strict=True)
    return max(difference(a.grad, b.grad) for a, b in pairs if b.grad is not None)


def test_shards_are_clipped_by_value() -> None:
    assert pair.run(_by_value) == [0.0, 0.0]


def _one_without_gradients(rank: int, norm_type: float) -> Any:
    """Clip plain parameters, of which each rank has its own; rank 1 has no gradient at all."""
    mine = nn.Parameter(torch.zeros(2))
    whole = nn.Parameter(torch.zeros(1))
    if rank == 0:
        mine.grad = torch.tensor([3.0, 4.0])
    whole.grad = torch.tensor([12.0])
    world = distributed.group.WORLD
    optimizer = _still(
        [mine, whole],
        clipping=NORM,
        max_gradient=1.0,
        norm_type=norm_type,
        enable_global_grad_clip=True,
        param_to_pgs={mine: [world]},
    )
    optimizer.step()
    return optimizer.last_total_grad_norm, mine.grad, whole.grad


def test_a_rank_without_gradients_keeps_no_rank_waiting() -> None:
    """torchrec raises an error on such a rank, while the others wait in a collective."""
    for norm_type, total in ((2.0, 13.0), (torch.inf, 12.0)):
        (first, mine, whole), (second, none, other) = pair.run(_one_without_gradients, norm_type)
        assert first == second == total
        torch.testing.assert_close(mine, torch.tensor([3.0, 4.0]) / total)
        assert none is None
        assert whole == other == pytest.approx(12.0 / total)


def _grouped(rank: int) -> Any:
    """Clip a table of each rank and a DTensor; `param_to_pgs` says which ranks' gradients count."""
    from torch.distributed.tensor import DTensor, Replicate

    table = nn.Parameter(torch.zeros(2))
    table.grad = torch.tensor([3.0, 4.0]) * (rank + 1)
    mesh = distributed.init_device_mesh("cpu", (2,))
    odd = nn.Parameter(DTensor.from_local(torch.zeros(1), mesh, [Replicate()]))
    odd.grad = DTensor.from_local(torch.ones(1) * (rank + 1), mesh, [Replicate()])
    groups = {table: [distributed.group.WORLD], odd: [distributed.group.WORLD]}
    results = []
    for is_global in (True, False):
        options = {"enable_global_grad_clip": is_global, "param_to_pgs": groups}
        total, grads = _still([table, odd], clipping=NORM, **options).compute_total_grad_norm()
        results.append(total.item() ** 2)
        assert [grad.numel() for grad in grads] == [2, 1]
    return results


def test_process_groups_count_if_clipping_is_global() -> None:
    first, second = pair.run(_grouped)
    assert first == pytest.approx([25 + 100 + 1 + 4, 25 + 1])
    assert second == pytest.approx([25 + 100 + 1 + 4, 100 + 4])


def _partial_gradient(rank: int) -> Any:
    """Clip a gradient whose summands the ranks have not added up yet."""
    from torch.distributed.tensor import DTensor, Partial, Shard

    mesh = distributed.init_device_mesh("cpu", (2,))
    param = nn.Parameter(DTensor.from_local(torch.zeros(2), mesh, [Shard(0)]))
    summand = torch.tensor([3.0, 0.0, 0.0, 4.0]) if rank else torch.tensor([0.0, 0.0, 6.0, 4.0])
    param.grad = DTensor.from_local(summand, mesh, [Partial()])
    optimizer = _still([param], clipping=NORM, max_gradient=1.0)
    optimizer.step()
    return optimizer.last_total_grad_norm.item() ** 2, param.grad.to_local()


def test_summands_are_added_up_first() -> None:
    (first, ours), (second, theirs) = pair.run(_partial_gradient)
    assert first == second == pytest.approx(9 + 36 + 64)
    torch.testing.assert_close(torch.cat([ours, theirs]), torch.tensor([3, 0, 6, 8]) / first**0.5)


def _not_a_number(rank: int) -> list[bool]:
    results = []
    for norm_type in (2.0, torch.inf):
        ours, _ = _with_gradients(distributed.init_device_mesh("cpu", (2,)), 0)
        if rank:
            ours[0].grad.to_local()[0, 0] = torch.nan
        optimizer = _still(ours, clipping=NORM, norm_type=norm_type)
        optimizer.step()
        results.append(bool(optimizer.last_total_grad_norm.isnan()))
    return results


def test_all_ranks_see_a_nan_of_one_rank() -> None:
    assert pair.run(_not_a_number) == [[True, True], [True, True]]


def _trained(rank: int) -> float:
    from torch.distributed.fsdp import fully_shard

    network, alone = models.model(), models.model()
    for layer in list(network)[::2]:
        fully_shard(layer)
    fully_shard(network)
    keyed = [
        KeyedOptimizerWrapper(dict(net.named_parameters()), lambda each: AdamW(each, lr=0.1))
        for net in (network, alone)
    ]
    ours, reference = (
        GradientClippingOptimizer(each, clipping=NORM, max_gradient=0.05) for each in keyed
    )
    models.train(network, ours, rank)
    models.train(alone, reference)
    torch.testing.assert_close(ours.last_total_grad_norm, reference.last_total_grad_norm)
    pairs = zip(network.parameters(), alone.parameters(), strict=True)
    return max(difference(a.detach(), b.detach()) for a, b in pairs)


def test_a_sharded_network_trains_as_one_process() -> None:
    assert max(pair.run(_trained)) < 1e-12
