"""Test checkpoints of keyed optimizers on two ranks: by name, and refused without a collective."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import pair
from torch import Tensor, distributed

import optgen.optim
from optgen import keyed

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

LIBRARIES = {"torch": torch.optim, "optgen": optgen.optim}


def values(seed: int) -> dict[str, Tensor]:
    """Return values whose shards on two ranks are even, uneven, and empty on one rank."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"even": (4, 3), "uneven": (3, 2), "empty": (1, 2)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def shard_rows(tensor: Tensor) -> Tensor:
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = distributed.init_device_mesh("cpu", (2,))
    return distribute_tensor(tensor, mesh, [Shard(0)])


def optimizer(library: str, sharded: bool, seed: int) -> keyed.WarmupOptimizer:
    """Return an optimizer with warm-up: Adam for shards and a bias, Adagrad for a table."""
    package = LIBRARIES[library]
    tensors = values(seed)
    shards = {n: shard_rows(v) if sharded else v for n, v in tensors.items()}
    dense = {n: torch.nn.Parameter(v) for n, v in shards.items()}
    dense["bias"] = torch.nn.Parameter(tensors["even"][0].clone())
    table = {"rows": torch.nn.Parameter(tensors["uneven"].clone())}
    combined = keyed.CombinedOptimizer(
        [
            ("dense", keyed.KeyedOptimizerWrapper(dense, lambda p: package.Adam(p, lr=0.1))),
            ("table", keyed.KeyedOptimizerWrapper(table, lambda p: package.Adagrad(p, lr=0.1))),
        ]
    )
    stages = [keyed.WarmupStage(max_iters=5, value=0.1)]
    return keyed.WarmupOptimizer(combined, stages, lr=0.1)


def train(keyed_optimizer: keyed.KeyedOptimizer, steps: range, sharded: bool) -> None:
    for step in steps:
        grads = values(100 + step)
        for name, param in keyed_optimizer.params.items():
            whole = grads.get(name.split(".")[-1])
            if whole is not None:
                param.grad = shard_rows(whole) if sharded else whole
        keyed_optimizer.params["dense.bias"].grad = grads["even"][0]
        keyed_optimizer.params["table.rows"].grad = grads["uneven"]
        keyed_optimizer.step()


def full_tensors(keyed_optimizer: keyed.KeyedOptimizer) -> dict[str, Any]:
    """Return parameters and states as plain tensors by name."""
    nested: dict[str, Any] = {**keyed_optimizer.params, **keyed_optimizer.state_dict()["state"]}
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        flat.update(
            {f"{name}.{k}": v for k, v in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    return {k: getattr(v, "full_tensor", lambda v=v: v)().detach() for k, v in flat.items()}


def checkpoint_contents(keyed_optimizer: keyed.KeyedOptimizer) -> dict[str, Any]:
    params = {name: param for name, param in keyed_optimizer.params.items() if param.numel()}
    return {"optimizer": keyed_optimizer.state_dict(), "model": params}


def train_and_save(rank: int, library: str, folder: str) -> dict[str, Any]:
    """Train two steps, save, and train two more; return the tensors at the end."""
    import torch.distributed.checkpoint as dcp

    trained = optimizer(library, True, seed=0)
    train(trained, range(2), True)
    dcp.save(checkpoint_contents(trained), checkpoint_id=folder)
    train(trained, range(2, 4), True)
    return full_tensors(trained)


def load_and_train(rank: int | None, library: str, folder: str) -> dict[str, Any]:
    """Load a checkpoint into an optimizer of other weights, train two steps, return the tensors."""
    import torch.distributed.checkpoint as dcp

    sharded = rank is not None
    resumed = optimizer(library, sharded, seed=7)
    resumed.init_state()
    state = checkpoint_contents(resumed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is", UserWarning)
        dcp.load(state, checkpoint_id=folder)
    resumed.load_state_dict(state["optimizer"])
    train(resumed, range(2, 4), sharded)
    return full_tensors(resumed)


@pytest.mark.parametrize("library", LIBRARIES)
def test_training_continues_from_a_checkpoint(library: str, tmp_path: Path) -> None:
    first, second = pair.run(train_and_save, library, str(tmp_path))
    assert "dense.uneven.exp_avg" in first
    assert first["__warmup.warmup"].tolist() == [4, 0]
    resumed = [
        *pair.run(load_and_train, library, str(tmp_path)),
        load_and_train(None, library, str(tmp_path)),
    ]

    for found in (second, *resumed):
        assert found.keys() == first.keys()
        for name, value in first.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=0)


def error_and_states_of_a_refused_load(rank: int) -> tuple[str, list[Any]]:
    """Load a state that rank 1 must refuse at one of its last parameters."""
    trained, target = (optimizer("optgen", True, seed=0) for _ in range(2))
    train(trained, range(2), True)
    target.init_state()
    checkpoint = trained.state_dict()
    if rank == 1:
        checkpoint["state"]["table.rows"] = {"step": torch.tensor(2.0), "total": torch.ones(3, 2)}
    message = ""
    try:
        target.load_state_dict(checkpoint)
    except ValueError as error:
        message = str(error)
    states = target.state_dict()["state"]
    return message, [states["dense.even"]["step"].item(), states["__warmup"]["warmup"].tolist()]


def test_a_rank_loads_although_the_other_refuses() -> None:
    first, second = pair.run(error_and_states_of_a_refused_load, limit=20)

    assert first == ("", [2.0, [2, 0]])
    assert second[0].startswith('Different entries: ["step", "sum"] vs ["step", "total"] for the')
    assert second[1] == [0.0, [0, 0]]


def error_of_other_placements(rank: int, order: list[int] | None) -> str:
    """Load a tensor of other placements on rank 1, where torchrec would start a collective.

    The tensor is replicated or, with an order, sharded over the ranks in this order.
    """
    from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard

    params = {"w": torch.nn.Parameter(shard_rows(torch.ones(4, 2)))}
    target = keyed.KeyedOptimizerWrapper(params, optgen.optim.Adam)
    target.init_state()
    checkpoint = target.state_dict()
    other = checkpoint["state"]["w"]["exp_avg"]
    if order is None:
        other = other.redistribute(placements=[Replicate()])
    else:
        mesh = DeviceMesh("cpu", order)
        other = DTensor.from_local(other.to_local(), mesh, [Shard(0)], run_check=False)
    if rank == 1:
        checkpoint["state"]["w"] = {**checkpoint["state"]["w"], "exp_avg": other}
    try:
        target.load_state_dict(checkpoint)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("order", [None, [1, 0]], ids=["replicated", "another order"])
def test_a_tensor_of_other_placements_is_refused_without_a_collective(order: Any) -> None:
    first, second = pair.run(error_of_other_placements, order, limit=20)

    assert first == ""
    assert second.startswith("Different placements: (Shard(dim=0),) on DeviceMesh(")
    assert second.endswith(
        'for the path of ["w", "exp_avg"]; redistribute what is to be loaded, on all ranks'
    )
