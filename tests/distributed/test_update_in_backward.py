"""Test training in the backward pass on two ranks: FSDP2 and DDP, compared with one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed import models, pair
from torch import distributed, nn

from optgen.keyed import FusedEmbeddingBag, UpdateInBackward, apply_optimizer_in_backward
from optgen.optim import SGD, Adafactor, AdamW

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

LARGER_THAN_THE_MODEL = 2**30


def _reference(cls: Any = AdamW) -> tuple[nn.Module, Any]:
    alone = models.model()
    optimizer = cls(alone.parameters(), lr=0.1)
    models.train(alone, optimizer)
    return alone, optimizer


def _sharded(network: nn.Sequential) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in list(network)[::2]:
        fully_shard(layer)
    return fully_shard(network)


def _differences_after_fsdp(rank: int, cls: Any, bucket_bytes: int) -> dict[str, float]:
    network = _sharded(models.model())
    model = UpdateInBackward(network, cls, bucket_bytes=bucket_bytes, lr=0.1)
    models.train(model, model.fused_optimizer, rank)
    assert all(param.grad is None for param in model.parameters())
    return models.differences((network, model.fused_optimizer), _reference(cls))


@pytest.mark.parametrize("cls", [AdamW, Adafactor])
@pytest.mark.parametrize(
    "bucket_bytes", [0, 200, LARGER_THAN_THE_MODEL], ids=["each", "some", "all"]
)
def test_fsdp2_trains_as_one_process(bucket_bytes: int, cls: Any) -> None:
    """Rules may communicate, because all ranks update the parameters in the same order."""
    assert pair.run(_differences_after_fsdp, cls, bucket_bytes) == [{}, {}]


def _check_wrapping_before_fully_shard(rank: int) -> None:
    network = models.model()
    model = UpdateInBackward(network, AdamW)
    _sharded(network)
    with pytest.raises(RuntimeError, match="make it after calls that replace parameters"):
        model(models.batch(0)[0])


def test_wrapping_before_fully_shard_is_refused() -> None:
    """The hooks would be on parameters that no longer exist."""
    pair.run(_check_wrapping_before_fully_shard)


def _differences_after_ddp(rank: int, bucket_bytes: int, view: bool) -> dict[str, float]:
    network = models.model()
    engine = nn.parallel.DistributedDataParallel(
        network, gradient_as_bucket_view=view, bucket_cap_mb=2e-4
    )
    model = UpdateInBackward(engine, AdamW, bucket_bytes=bucket_bytes, lr=0.1)
    models.train(model, model.fused_optimizer, rank)
    assert all(param.grad is None for param in model.parameters())
    return models.differences((network, model.fused_optimizer), _reference())


@pytest.mark.parametrize("view", [False, True], ids=["", "views"])
@pytest.mark.parametrize(
    "bucket_bytes", [0, 200, LARGER_THAN_THE_MODEL], ids=["each", "some", "all"]
)
def test_ddp_trains_as_one_process(bucket_bytes: int, view: bool) -> None:
    """Parameters are updated after DDP has summed gradients over both ranks, in DDP's buckets."""
    assert pair.run(_differences_after_ddp, bucket_bytes, view) == [{}, {}]


def _difference_with_one_optimizer_each(rank: int) -> float:
    network = models.model()
    _sharded(network)
    apply_optimizer_in_backward(AdamW, network.parameters(), {"lr": 0.1})
    for step in range(models.STEPS):
        inputs, targets = (models.half(rank, whole) for whole in models.batch(step))
        nn.functional.mse_loss(network(inputs), targets).backward()
    alone, _ = _reference()
    pairs = zip(network.parameters(), alone.parameters(), strict=True)
    return max(models.difference(a.detach(), b.detach()) for a, b in pairs)


def test_one_optimizer_per_parameter_trains_as_one_process() -> None:
    assert max(pair.run(_difference_with_one_optimizer_each)) < models.BOUND


def _ddp_removes_hooks(rank: int) -> bool:
    """Tell whether DDP removes the hooks. DDP then steps parameters on an accelerator's stream."""
    network = models.model()
    apply_optimizer_in_backward(SGD, network.parameters(), {"lr": 0.1})
    engine = nn.parallel.DistributedDataParallel(network)
    if torch.accelerator.is_available():
        engine(models.batch(0)[0])
    else:  # torch 2.15 makes the stream when the model is called, torch before that in backward
        with pytest.raises(RuntimeError, match=r"accelerator|create a new Stream"):
            engine(models.batch(0)[0]).sum().backward()
    return not any(param._post_accumulate_grad_hooks for param in network.parameters())


def test_ddp_removes_the_hooks() -> None:
    """On a CPU torch's own function fails in the same way."""
    assert pair.run(_ddp_removes_hooks) == [True, True]


def _check_hooks_before_init_process_group(rank: int) -> None:
    """Put a hook on a parameter before there is a process group, and call it afterwards."""
    from unittest.mock import patch

    param = nn.Parameter(torch.zeros(2))
    with patch.object(distributed, "is_initialized", return_value=False):
        apply_optimizer_in_backward(SGD, [param], {})
    with pytest.raises(RuntimeError, match="call init_process_group first"):
        param.sum().backward()


def test_hooks_before_init_process_group_are_refused() -> None:
    """DDP would not know of these hooks, and the ranks would diverge."""
    pair.run(_check_hooks_before_init_process_group)


def _changed_rows(rank: int) -> Any:
    """Train a table of this rank only; return the rows that changed."""
    table = FusedEmbeddingBag(8, 4, mode="sum", optimizer_kwargs={"lr": 0.1})
    before = table.weight.detach().clone()
    table(torch.tensor([[rank, 5]])).sum().backward()
    return (table.weight != before).any(1).nonzero().flatten().tolist()


def test_each_rank_trains_a_table_of_its_own() -> None:
    assert pair.run(_changed_rows) == [[0, 5], [1, 5]]
