"""Test SAM under FSDP2: the norm is that of all ranks, and a training is that of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed import models, pair
from torch import Tensor, distributed, nn
from torch.nn.functional import mse_loss

from optgen.optim import SAM, AdamW

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")


def _train(network: nn.Module, optimizer: SAM, rank: int | None = None) -> None:
    for step in range(models.STEPS):
        inputs, targets = models.batch(step)
        if rank is not None:
            inputs, targets = models.half(rank, inputs), models.half(rank, targets)

        def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
            loss = mse_loss(network(inputs), targets)
            loss.backward()
            return loss

        optimizer.step(closure)


def _differences(rank: int, adaptive: bool, mesh: tuple[int, ...]) -> dict[str, float]:
    """Train a sharded network and a whole one; return what differs."""
    from torch.distributed.fsdp import fully_shard

    names = ("replicated", "sharded")[-len(mesh) :]
    device_mesh = distributed.init_device_mesh("cpu", mesh, mesh_dim_names=names)
    network, alone = models.model(), models.model()
    for layer in list(network)[::2]:
        fully_shard(layer, mesh=device_mesh)
    fully_shard(network, mesh=device_mesh)
    ours, reference = (
        SAM(AdamW(each.parameters(), lr=1e-2), rho=0.3, adaptive=adaptive)
        for each in (network, alone)
    )
    _train(network, ours, rank)
    _train(alone, reference)
    return models.differences((network, ours), (alone, reference))


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("mesh", [(2,), (1, 2), (2, 1)], ids=str)
def test_a_sharded_training_is_that_of_one_process(mesh: tuple[int, ...], adaptive: bool) -> None:
    assert pair.run(_differences, adaptive, mesh) == [{}, {}]


def _weights_after_a_failed_pass(rank: int) -> bool:
    """Fail in the second pass of both ranks; tell whether the weights are as before."""
    from torch.distributed.fsdp import fully_shard

    network: Any = fully_shard(
        models.model(), mesh=distributed.init_device_mesh("cpu", (distributed.get_world_size(),))
    )
    optimizer = SAM(AdamW(network.parameters()))
    before = [param.full_tensor().clone() for param in network.parameters()]
    calls = []

    def closure() -> Tensor:
        calls.append(rank)
        if len(calls) == 2:
            raise ValueError("the second pass fails")
        loss = network(models.batch(0)[0]).square().mean()
        loss.backward()
        return loss

    with pytest.raises(ValueError, match="second pass"):
        optimizer.step(closure)
    after = [param.full_tensor() for param in network.parameters()]
    return all(map(torch.equal, after, before))


def test_a_failed_pass_restores_the_shards() -> None:
    assert pair.run(_weights_after_a_failed_pass) == [True, True]
