"""Test loading of sharded state, shard by shard. In these tests one rank has all shards."""

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from keyed.models import content, parameters
from torch import Tensor, distributed

from optgen.keyed import KeyedOptimizer

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def sharded_tensor(values: list[Tensor]) -> Any:
    """Return a ShardedTensor with these local shards; torch itself makes only one for a rank."""
    from torch.distributed._shard import sharded_tensor, sharding_spec

    spec = sharding_spec.ChunkShardingSpec(dim=0, placements=["rank:0/cpu"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # ShardedTensor is deprecated
        tensor = sharded_tensor.zeros(spec, (2,))
        (shard,) = tensor.local_shards()
    tensor._local_shards = [copy.copy(shard) for _ in values]
    for each, value in zip(tensor._local_shards, values, strict=True):
        each.tensor = value
    return tensor


def dtensor(local: Any, placement: str = "Shard", dim_names: Any = None) -> Any:
    from torch.distributed import tensor

    mesh = distributed.init_device_mesh("cpu", (1,), mesh_dim_names=dim_names)
    placements = [tensor.Shard(0) if placement == "Shard" else tensor.Replicate()]
    return tensor.DTensor.from_local(local, mesh, placements, run_check=False)


def dtensor_of_shards(values: list[Tensor]) -> Any:
    """Return a DTensor whose local tensor is a list of shards."""
    from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper

    return dtensor(LocalShardsWrapper(values, [(0, 0)] * len(values)))


def optimizer_with_state(value: Any) -> KeyedOptimizer:
    """Return a keyed optimizer whose state is one entry, and a number after it."""
    params = parameters()
    state = {params["weight"]: {"m": value, "n": 0}}
    return KeyedOptimizer(params, state, [])


def load(current: Any, new: Any) -> None:
    optimizer_with_state(current).load_state_dict({"state": {"weight": {"m": new, "n": 1}}})


def test_sharded_tensors_are_written_shard_by_shard() -> None:
    shards = [torch.zeros(2, 2), torch.zeros(2, 3)]
    load(sharded_tensor(shards), sharded_tensor([torch.ones(2, 2), torch.full((2, 3), 2.0)]))

    assert [shard.unique().tolist() for shard in shards] == [[1.0], [2.0]]


def test_a_shard_takes_the_shape_of_the_loaded_one() -> None:
    shard = torch.zeros(2, 2)
    load(sharded_tensor([shard]), sharded_tensor([torch.ones(2, 5)]))

    assert shard.tolist() == torch.ones(2, 5).tolist()


def test_dtensors_are_written_in_place() -> None:
    local = torch.zeros(3, 2)
    load(dtensor(local), dtensor(torch.ones(3, 2)))

    assert (local == 1).all()


def test_the_dimensions_of_a_mesh_may_have_other_names() -> None:
    local = torch.zeros(3, 2)
    load(dtensor(local, dim_names=("dp",)), dtensor(torch.ones(3, 2)))

    assert (local == 1).all()


def test_dtensors_of_shards_are_written_shard_by_shard() -> None:
    shards = [torch.zeros(2, 2), torch.zeros(2, 3)]
    load(dtensor_of_shards(shards), dtensor_of_shards([torch.ones(2, 2), torch.full((2, 3), 2.0)]))

    assert [shard.unique().tolist() for shard in shards] == [[1.0], [2.0]]


def test_sparse_momentum_becomes_dense() -> None:
    momentum = torch.zeros(3, 2)
    load(momentum, torch.ones(3, 2).to_sparse())

    assert (momentum == 1).all()


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize(("sparse_dim", "new_sparse_dim"), [(1, 2), (2, 1), (1, 1)])
def test_a_sparse_tensor_takes_the_sparse_axes_of_the_loaded_one(
    sparse_dim: int, new_sparse_dim: int, rows: int
) -> None:
    momentum = torch.zeros(3, 2).index_fill_(0, torch.arange(rows), 1.0).to_sparse(sparse_dim)
    load(momentum, torch.full((3, 2), 2.0).to_sparse(new_sparse_dim))

    assert (momentum.sparse_dim(), momentum.dense_dim()) == (new_sparse_dim, 2 - new_sparse_dim)
    momentum.mul_(2).add_(torch.ones(3, 2).to_sparse(new_sparse_dim))  # as a step does
    assert (momentum.to_dense() == 5).all()


@pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning")
def test_sharded_tensors_may_be_the_parameters() -> None:
    class NoOpOptimizer(KeyedOptimizer):
        def step(self, closure: Any = None) -> None:
            pass

    def make(value: float) -> NoOpOptimizer:
        param, state = (sharded_tensor([torch.full((2, 2), value)]) for _ in range(2))
        return NoOpOptimizer(
            {"w": param}, {param: {"m": state}}, [{"params": [param], "lr": value}]
        )

    source, target = make(1.0), make(2.0)
    for each in (source, target):
        each.save_param_groups(True)
        each.init_state()
    target.load_state_dict(source.state_dict())

    (loaded,) = target.state_dict()["state"]["w"]["m"].local_shards()
    assert (loaded.tensor == 1.0).all()
    assert target.state_dict()["param_groups"] == [{"params": ["w"], "lr": 1.0}]


MISMATCHES: dict[str, tuple[Any, Any, str]] = {
    "shards": (
        lambda: sharded_tensor([torch.zeros(2)]),
        lambda: sharded_tensor([torch.ones(2), torch.ones(2)]),
        'Different number of shards 1 vs 2 for the path of ["weight", "m"]',
    ),
    "shards of a DTensor": (
        lambda: dtensor_of_shards([torch.zeros(2, 2), torch.zeros(2, 2)]),
        lambda: dtensor_of_shards([torch.ones(2, 2)]),
        'Different number of shards 2 vs 1 for the path of ["weight", "m"]',
    ),
    "shape of a shard": (
        lambda: dtensor_of_shards([torch.zeros(2, 2)]),
        lambda: dtensor_of_shards([torch.ones(1, 2)]),
        'Different shape: torch.Size([2, 2]) vs torch.Size([1, 2]) for the path of ["weight", "m"]',
    ),
    "shape of a DTensor": (
        lambda: dtensor(torch.zeros(2, 2)),
        lambda: dtensor(torch.ones(1, 2)),
        'Different shape: torch.Size([2, 2]) vs torch.Size([1, 2]) for the path of ["weight", "m"]',
    ),
    "Tensor for a ShardedTensor": (
        lambda: sharded_tensor([torch.zeros(2)]),
        lambda: torch.ones(2),
        'Different kind: ShardedTensor vs Tensor for the path of ["weight", "m"]',
    ),
    "Tensor for a DTensor": (
        lambda: dtensor(torch.zeros(2)),
        lambda: torch.ones(2),
        'Different kind: DTensor vs Tensor for the path of ["weight", "m"]',
    ),
    "DTensor for a Tensor": (
        lambda: torch.zeros(2),
        lambda: dtensor(torch.ones(2)),
        'Different kind: Tensor vs DTensor for the path of ["weight", "m"]',
    ),
    "no shards": (
        lambda: dtensor_of_shards([torch.zeros(2, 2)]),
        lambda: dtensor(torch.ones(2, 2)),
        'Different kind: DTensor of LocalShardsWrapper vs Tensor for the path of ["weight", "m"]',
    ),
    "placements": (
        lambda: dtensor(torch.zeros(2)),
        lambda: dtensor(torch.ones(2), "Replicate"),
        "Different placements: (Shard(dim=0),) on DeviceMesh(",
    ),
    "dense for sparse": (
        lambda: torch.zeros(2, 2).to_sparse(),
        lambda: torch.ones(2, 2),
        'Different layout: torch.sparse_coo vs torch.strided for the path of ["weight", "m"]',
    ),
}


@pytest.mark.parametrize(("current", "new", "message"), MISMATCHES.values(), ids=MISMATCHES)
def test_the_error_names_the_difference(current: Any, new: Any, message: str) -> None:
    optimizer = optimizer_with_state(current())
    with pytest.raises(ValueError) as caught:
        optimizer.load_state_dict({"state": {"weight": {"m": new(), "n": 1}}})

    assert str(caught.value).startswith(message)
    assert optimizer.state[optimizer.params["weight"]]["n"] == 0
    if "kind" in message:
        assert isinstance(caught.value, AssertionError)  # as in torchrec


def test_an_entry_that_is_no_tensor_is_replaced_by_a_copy() -> None:
    optimizer, new = optimizer_with_state(None), [1, 2]
    optimizer.load_state_dict({"state": {"weight": {"m": new, "n": 1}}})

    found = optimizer.state_dict()["state"]["weight"]["m"]
    assert content(found) == new
    assert found is not new
