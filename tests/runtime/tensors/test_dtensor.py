"""Test DTensor parameters: lowerings step on local shards; states are sharded as parameters are."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.training import error
from torch import distributed, nn

from optgen import use_lowering
from optgen.optim import Adam
from optgen.runtime import take_step
from optgen.runtime.reader.tensor_reader import reader
from optgen.runtime.tensors.sharding import sharding_of

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
def test_sharded_and_plain_parameters_share_a_group(
    lowering: str, mesh: "distributed.DeviceMesh"
) -> None:
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    def shard(tensor: torch.Tensor) -> torch.Tensor:
        return distribute_tensor(tensor, mesh, [Shard(0)])

    torch.manual_seed(0)
    values = [torch.randn(3, 4, dtype=torch.float64) for _ in range(2)]
    theirs = [torch.nn.Parameter(value.clone()) for value in values]
    ours = [torch.nn.Parameter(shard(values[0].clone())), torch.nn.Parameter(values[1].clone())]
    optimizer, reference = Adam(ours), torch.optim.Adam(theirs)
    for _ in range(4):
        for param in theirs:
            param.grad = torch.randn_like(param)
        ours[0].grad, ours[1].grad = shard(theirs[0].grad), theirs[1].grad.clone()
        with use_lowering(lowering):
            optimizer.step()
        reference.step()

    states = optimizer.state[ours[0]]
    assert isinstance(states["exp_avg"], DTensor)
    assert states["exp_avg"].placements == ours[0].placements
    assert type(states["step"]) is torch.Tensor
    assert error([ours[0].full_tensor(), ours[1]], theirs) < 1e-12
    assert error([states["exp_avg"].full_tensor()], [reference.state[theirs[0]]["exp_avg"]]) < 1e-12


def test_a_cached_sharding_does_not_keep_its_mesh_alive(mesh: "distributed.DeviceMesh") -> None:
    from torch.distributed.tensor import DTensor, Replicate

    other_mesh = distributed.DeviceMesh("cpu", [[0]])
    tensor = DTensor.from_local(torch.ones(2), other_mesh, [Replicate()] * 2, run_check=False)
    assert sharding_of(tensor) is None
    reference_to_mesh = weakref.ref(other_mesh)

    del other_mesh, tensor
    gc.collect()

    assert reference_to_mesh() is None


class TestACachedStep:
    """The C++ reader reads local shards as long as the sharding is that of the step before."""

    @pytest.fixture
    def optimizer_and_step(self, mesh: "distributed.DeviceMesh") -> "tuple[Any, Any]":
        """Return an optimizer of a sharded and a plain parameter, and a function that steps."""
        from torch.distributed.tensor import Shard, distribute_tensor

        if reader() is None:
            pytest.skip("no tensor reader here")
        torch.manual_seed(0)
        values = [torch.randn(4, 4), torch.randn(3)]
        ours = [nn.Parameter(distribute_tensor(values[0].clone(), mesh, [Shard(0)]))]
        ours.append(nn.Parameter(values[1].clone()))
        theirs = [nn.Parameter(value.clone()) for value in values]
        optimizer, reference = Adam(ours, amsgrad=True), torch.optim.Adam(theirs, amsgrad=True)

        def step(*placements: Any) -> None:
            for param in theirs:
                param.grad = torch.randn(param.shape)
            # Made from the parameter, as engines do, so that it has the very same DTensorSpec.
            ours[0].grad = torch.zeros_like(ours[0])
            ours[0].grad.to_local().copy_(theirs[0].grad)
            if placements:
                ours[0].grad = ours[0].grad.redistribute(placements=placements)
            ours[1].grad = theirs[1].grad.clone()
            optimizer.step()
            reference.step()
            assert error([ours[0].to_local(), ours[1]], theirs) < 1e-6

        step()
        return optimizer, step

    def test_local_shards_are_read_in_cpp(
        self, optimizer_and_step: "tuple[Any, Any]", monkeypatch: pytest.MonkeyPatch
    ) -> None:
        optimizer, step = optimizer_and_step
        monkeypatch.setattr(
            take_step, "gather_batches", lambda *_: pytest.fail("gathered in Python")
        )
        versions = [p._version for p in self.params_and_shard(optimizer)]
        step()
        step()
        assert [p._version for p in self.params_and_shard(optimizer)] == [v + 2 for v in versions]

    def test_another_placement_ends_the_cached_step(
        self, optimizer_and_step: "tuple[Any, Any]"
    ) -> None:
        from torch.distributed.tensor import Replicate, Shard

        optimizer, step = optimizer_and_step
        for placement in (Shard(1), Replicate(), Shard(0)):
            cached_before = optimizer._context.cached_step
            step(placement)
            assert optimizer._context.cached_step is not cached_before

    def test_replaced_memory_is_used(self, optimizer_and_step: "tuple[Any, Any]") -> None:
        optimizer, step = optimizer_and_step
        param = optimizer.param_groups[0]["params"][0]
        param._local_tensor = param._local_tensor.clone()
        step()
        optimizer.state[param]["exp_avg"] = optimizer.state[param]["exp_avg"].clone()
        step()

    def test_a_state_of_other_placements_is_refused(
        self, optimizer_and_step: "tuple[Any, Any]"
    ) -> None:
        from torch.distributed.tensor import Shard

        optimizer, step = optimizer_and_step
        param = optimizer.param_groups[0]["params"][0]
        optimizer.state[param]["exp_avg"] = optimizer.state[param]["exp_avg"].redistribute(
            placements=[Shard(1)]
        )
        with pytest.raises(RuntimeError, match="exp_avg is a DTensor"):
            step()

    @staticmethod
    def params_and_shard(optimizer: Any) -> list[torch.Tensor]:
        """Return both parameters, and the local shard of the first."""
        first, second = optimizer.param_groups[0]["params"]
        return [first, second, first.to_local().detach()]
