"""Sharded parameters: lowerings step on local shards, states are sharded as their parameters."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from runtime.training import error
from torch import distributed

from optgen import use_lowering
from optgen.optim import Adam

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")


@pytest.fixture
def mesh(tmp_path: Path) -> "Iterator[distributed.DeviceMesh]":
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        yield distributed.init_device_mesh("cpu", (1,))
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
def test_sharded_and_plain_parameters_in_one_group(
    lowering: str, mesh: "distributed.DeviceMesh"
) -> None:
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    def sharded(tensor: torch.Tensor) -> torch.Tensor:
        return distribute_tensor(tensor, mesh, [Shard(0)])

    torch.manual_seed(0)
    values = [torch.randn(3, 4, dtype=torch.float64) for _ in range(2)]
    theirs = [torch.nn.Parameter(value.clone()) for value in values]
    ours = [torch.nn.Parameter(sharded(values[0].clone())), torch.nn.Parameter(values[1].clone())]
    optimizer, reference = Adam(ours), torch.optim.Adam(theirs)
    for _ in range(4):
        for param in theirs:
            param.grad = torch.randn_like(param)
        ours[0].grad, ours[1].grad = sharded(theirs[0].grad), theirs[1].grad.clone()
        with use_lowering(lowering):
            optimizer.step()
        reference.step()

    states = optimizer.state[ours[0]]
    assert isinstance(states["exp_avg"], DTensor)
    assert states["exp_avg"].placements == ours[0].placements
    assert type(states["step"]) is torch.Tensor
    assert error([ours[0].full_tensor(), ours[1]], theirs) < 1e-12
    assert error([states["exp_avg"].full_tensor()], [reference.state[theirs[0]]["exp_avg"]]) < 1e-12
