"""Test clipping of sharded gradients on two ranks: the norm is that of one process."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from distributed import models, pair
from distributed.cases import PLACED_SHAPES, difference, gradients, shard
from keyed.models import NoOpOptimizer
from torch import Tensor, distributed, nn

from optgen.keyed import GradientClipping, GradientClippingOptimizer, KeyedOptimizerWrapper
from optgen.optim import AdamW

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

NORM, VALUE = GradientClipping.NORM, GradientClipping.VALUE


def _clipping_only(params: list[nn.Parameter], **options: Any) -> GradientClippingOptimizer:
    """Return an optimizer that clips gradients and leaves the parameters as they are."""
    named: dict[str, Tensor] = {str(index): param for index, param in enumerate(params)}
    return GradientClippingOptimizer(NoOpOptimizer(named, {}, [{"params": params}]), **options)


def _with_gradients(mesh: Any, step: int, scale: float = 3.0) -> tuple[list[Any], list[Any]]:
    """Return sharded parameters, and equal whole ones, all with gradients."""
    ours, alone = [], []
    for (shape, placement), grad in zip(PLACED_SHAPES, gradients(step, torch.float32), strict=True):
        whole = torch.zeros(shape)
        ours.append(nn.Parameter(shard(whole, placement, mesh)))
        alone.append(nn.Parameter(whole))
        if grad is not None:
            ours[-1].grad, alone[-1].grad = shard(grad * scale, placement, mesh), grad * scale
    return ours, alone


def _error_and_count_of_calls(
    rank: int, mesh: tuple[int, ...], norm_type: float
) -> tuple[float, int]:
    """Return the largest difference to torch on one process, and the number of all_reduce calls."""
    device_mesh = distributed.init_device_mesh("cpu", mesh)
    largest_error, calls = 0.0, 0
    for step, limit in enumerate((0.5, 4.0, 1e6)):
        ours, alone = _with_gradients(device_mesh, step)
        optimizer = _clipping_only(ours, clipping=NORM, max_gradient=limit, norm_type=norm_type)
        with patch.object(distributed, "all_reduce", wraps=distributed.all_reduce) as all_reduce:
            optimizer.step()
        calls = max(calls, all_reduce.call_count)
        total = nn.utils.clip_grad_norm_(alone, limit, norm_type)
        largest_error = max(largest_error, difference(optimizer.last_total_grad_norm, total))
        pairs = zip(ours, alone, strict=True)
        largest_error = max(
            largest_error, *(difference(a.grad, b.grad) for a, b in pairs if b.grad is not None)
        )
    return largest_error, calls


@pytest.mark.parametrize("norm_type", [2.0, 3.0, torch.inf])
@pytest.mark.parametrize("mesh", [(2,), (1, 2), (2, 1)], ids=str)
def test_the_norm_is_that_of_one_process(mesh: tuple[int, ...], norm_type: float) -> None:
    """Shards are even, uneven, empty or replicated, and one tensor is plain.

    Tensors are cut along the mesh's last dimension. No all_reduce is needed if its size is one.
    """
    for largest_error, calls in pair.run(_error_and_count_of_calls, mesh, norm_type):
        assert largest_error < 1e-6
        assert calls == (1 if mesh[-1] > 1 else 0)


def _error_of_clipping_by_value(rank: int) -> float:
    ours, alone = _with_gradients(distributed.init_device_mesh("cpu", (2,)), 0)
    _clipping_only(ours, clipping=VALUE, max_gradient=1.0).step()
    nn.utils.clip_grad_value_(alone, 1.0)
    pairs = zip(ours, alone, strict=True)
    return max(difference(a.grad, b.grad) for a, b in pairs if b.grad is not None)


def test_shards_are_clipped_by_value() -> None:
    assert pair.run(_error_of_clipping_by_value) == [0.0, 0.0]


def _clip_without_a_gradient_on_rank_1(rank: int, norm_type: float) -> Any:
    """Clip two parameters: `mine` has a gradient on rank 0 only, `shared` an equal one on both."""
    mine = nn.Parameter(torch.zeros(2))
    shared = nn.Parameter(torch.zeros(1))
    if rank == 0:
        mine.grad = torch.tensor([3.0, 4.0])
    shared.grad = torch.tensor([12.0])
    world = distributed.group.WORLD
    optimizer = _clipping_only(
        [mine, shared],
        clipping=NORM,
        max_gradient=1.0,
        norm_type=norm_type,
        enable_global_grad_clip=True,
        param_to_pgs={mine: [world]},
    )
    optimizer.step()
    return optimizer.last_total_grad_norm, mine.grad, shared.grad


def test_a_rank_without_gradients_keeps_no_rank_waiting() -> None:
    """torchrec raises an error on such a rank, while the others wait in a collective."""
    for norm_type, total in ((2.0, 13.0), (torch.inf, 12.0)):
        ranks = pair.run(_clip_without_a_gradient_on_rank_1, norm_type)
        (first, mine, shared), (second, missing, shared_of_other) = ranks
        assert first == second == total
        torch.testing.assert_close(mine, torch.tensor([3.0, 4.0]) / total)
        assert missing is None
        assert shared == shared_of_other == pytest.approx(12.0 / total)


def _squared_norms(rank: int) -> Any:
    """Return the squared norms of gradients that differ on both ranks, global and of this rank."""
    from torch.distributed.tensor import DTensor, Replicate

    table = nn.Parameter(torch.zeros(2))
    table.grad = torch.tensor([3.0, 4.0]) * (rank + 1)
    mesh = distributed.init_device_mesh("cpu", (2,))
    replicated = nn.Parameter(DTensor.from_local(torch.zeros(1), mesh, [Replicate()]))
    replicated.grad = DTensor.from_local(torch.ones(1) * (rank + 1), mesh, [Replicate()])
    groups = {table: [distributed.group.WORLD], replicated: [distributed.group.WORLD]}
    results = []
    for is_global in (True, False):
        options = {"enable_global_grad_clip": is_global, "param_to_pgs": groups}
        optimizer = _clipping_only([table, replicated], clipping=NORM, **options)
        total, grads = optimizer.compute_total_grad_norm()
        results.append(total.item() ** 2)
        assert [grad.numel() for grad in grads] == [2, 1]
    return results


def test_global_clipping_sums_over_process_groups() -> None:
    first, second = pair.run(_squared_norms)
    assert first == pytest.approx([25 + 100 + 1 + 4, 25 + 1])
    assert second == pytest.approx([25 + 100 + 1 + 4, 100 + 4])


def _clip_partial_gradient(rank: int) -> Any:
    """Clip a gradient whose summands the ranks have not added up yet."""
    from torch.distributed.tensor import DTensor, Partial, Shard

    mesh = distributed.init_device_mesh("cpu", (2,))
    param = nn.Parameter(DTensor.from_local(torch.zeros(2), mesh, [Shard(0)]))
    summand = torch.tensor([3.0, 0.0, 0.0, 4.0]) if rank else torch.tensor([0.0, 0.0, 6.0, 4.0])
    param.grad = DTensor.from_local(summand, mesh, [Partial()])
    optimizer = _clipping_only([param], clipping=NORM, max_gradient=1.0)
    optimizer.step()
    return optimizer.last_total_grad_norm.item() ** 2, param.grad.to_local()


def test_partial_gradients_are_added_up_before_clipping() -> None:
    (first, ours), (second, theirs) = pair.run(_clip_partial_gradient)
    assert first == second == pytest.approx(9 + 36 + 64)
    torch.testing.assert_close(torch.cat([ours, theirs]), torch.tensor([3, 0, 6, 8]) / first**0.5)


def _norms_are_nan(rank: int) -> list[bool]:
    """Tell for two norms whether they are NaN, if rank 1 has a NaN."""
    results = []
    for norm_type in (2.0, torch.inf):
        ours, _ = _with_gradients(distributed.init_device_mesh("cpu", (2,)), 0)
        if rank:
            ours[0].grad.to_local()[0, 0] = torch.nan
        optimizer = _clipping_only(ours, clipping=NORM, norm_type=norm_type)
        optimizer.step()
        results.append(bool(optimizer.last_total_grad_norm.isnan()))
    return results


def test_all_ranks_see_a_nan_of_one_rank() -> None:
    assert pair.run(_norms_are_nan) == [[True, True], [True, True]]


def _difference_after_training(rank: int) -> float:
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


def test_a_sharded_network_with_clipping_trains_as_one_process() -> None:
    assert max(pair.run(_difference_after_training)) < 1e-12
