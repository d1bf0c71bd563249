"""Train, save and load with rules on whole matrices, on some of four ranks.

The ranks import this module, so it imports little.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from distributed.shards import difference
from spec_files import spec_file
from torch import Tensor, distributed, nn

import optgen
from optgen.runtime.eager import tensor_lists
from optgen.runtime.sharded import driver

BOUND = 1e-12
STEPS = 4
ShapesAndAxes = tuple[tuple[tuple[int, ...], int | None], ...]
MATRICES: ShapesAndAxes = (
    ((8, 4), 0),
    ((8, 4), 0),
    ((4, 6), 0),
    ((5, 3), 0),  # unevenly
    ((1, 6), 0),  # one rank has all
    ((3, 5), 1),
    ((8, 4), 0),
)
BATCHES: ShapesAndAxes = (((3, 5, 4), 1), ((2, 5, 3), 0), ((3, 4), None))
VECTOR_AND_SCALAR: ShapesAndAxes = (((7,), 0), ((), None))
SQUARES: ShapesAndAxes = (
    ((5, 5), 0),
    ((5, 5), 0),
    ((4, 4), 1),
    ((3, 5, 5), 0),
    ((3, 4, 4), 1),
    *VECTOR_AND_SCALAR,
)
"""Shapes, and the axis along which they are sharded. With None, all ranks hold the whole tensor.

SQUARES have Gram matrices of full rank, so the eigenvectors are unique.
"""
CASES: dict[str, tuple[dict[str, Any], ShapesAndAxes]] = {
    "soap": ({"precondition_frequency": 2, "max_precond_dim": 4}, SQUARES),
    "shampoo": ({"update_freq": 2}, (*MATRICES, *BATCHES, *VECTOR_AND_SCALAR)),
    "kl_soap": ({"precondition_frequency": 2}, MATRICES),
    "dion": ({"rank": 2}, (*MATRICES, *BATCHES)),
    "galore": ({"rank": 2, "update_proj_gap": 2}, (*MATRICES, *BATCHES)),
    "apollo": ({"rank": 2, "mini": True}, (*MATRICES, *BATCHES)),
    "clipped_shampoo": ({}, (*MATRICES, *BATCHES, *VECTOR_AND_SCALAR)),
}
"""Options and parameters of rules: some have row, column or group states, or random numbers."""
MESHES = ("two", "three", "HSDP", "rows and columns", "strided")
RULES_ON_TWO_DIMENSIONS = ("shampoo", "kl_soap", "dion", "clipped_shampoo")
"""Rules for meshes of two dimensions; the others run on two and three ranks."""


def optimizer_class(name: str) -> Any:
    return optgen.load(spec_file(name))


def _two_groups(params: list[Any]) -> list[dict[str, Any]]:
    return [{"params": params[:3]}, {"params": params[3:], "lr": 0.05}]


def _mesh(name: str) -> Any:
    from torch.distributed import DeviceMesh

    ranks = {"two": [0, 1], "three": [0, 1, 2]}.get(name, [[0, 1], [2, 3]])
    names = ("outer", "inner") if name not in ("two", "three") else ("only",)
    return DeviceMesh("cpu", ranks, mesh_dim_names=names)


def _sharded(value: Tensor, axis: int | None, mesh: Any, name: str) -> nn.Parameter:
    """Return a whole tensor as a parameter that is sharded over a mesh."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    if axis is None and not value.dim():
        return nn.Parameter(value.clone())
    if axis is None:
        replicated = [Replicate()] * mesh.ndim
        return nn.Parameter(distribute_tensor(value.clone(), mesh, replicated, src_data_rank=None))
    inner_placement = Shard(value.dim() - 1) if name == "rows and columns" else Shard(axis)
    placements = {
        "HSDP": [Replicate(), inner_placement],
        "rows and columns": [Shard(0), inner_placement],
    }
    if name == "strided":
        holder = nn.Module()
        inner = distribute_tensor(value, mesh["inner"], [Shard(axis)], src_data_rank=None)
        holder.weight = nn.Parameter(inner)
        fully_shard(holder, mesh=mesh["outer"])
        return holder.weight
    mesh_placements = placements.get(name, [inner_placement] * mesh.ndim)
    return nn.Parameter(distribute_tensor(value.clone(), mesh, mesh_placements, src_data_rank=None))


def full_tensor(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def differences(ours: Any, alone: Any) -> dict[str, float]:
    """Return the differences of parameters, states and group states that exceed the bound."""
    results: dict[str, float] = {}
    for group, expected in zip(ours.param_groups, alone.param_groups, strict=True):
        for state in ours.rule.group_states:
            results[state.key] = difference(group[state.key], expected[state.key])
        pairs = zip(group["params"], expected["params"], strict=True)
        for index, (param, alone_param) in enumerate(pairs):
            results[f"{index} {tuple(alone_param.shape)}"] = difference(
                full_tensor(param.detach()), alone_param.detach()
            )
            assert list(ours.state.get(param, {})) == list(alone.state.get(alone_param, {}))
            for key, value in alone.state.get(alone_param, {}).items():
                what = f"{key} of {index} {tuple(alone_param.shape)}"
                results[what] = difference(full_tensor(ours.state[param][key]), value)
    return {name: value for name, value in results.items() if value > BOUND}


def differences_on_mesh(rank: int, mesh: str) -> dict[str, float]:
    """Step shards on a mesh and equal parameters in one process; return the differences."""
    results = _differences_on_mesh(mesh)
    distributed.barrier()  # the ranks outside the mesh wait here
    return results


def _differences_on_mesh(name: str) -> dict[str, float]:
    mesh, found = _mesh(name), {}
    if mesh.get_coordinate() is None:
        return {}
    for rule in CASES if mesh.ndim == 1 else RULES_ON_TWO_DIMENSIONS:
        options, shapes = CASES[rule]
        torch.manual_seed(3)
        drawn = [torch.randn(shape, dtype=torch.float64) for shape, _ in shapes]
        alone = [nn.Parameter(value.clone()) for value in drawn]
        pairs = zip(drawn, shapes, strict=True)
        sharded = [_sharded(value, axis, mesh, name) for value, (_, axis) in pairs]
        # Owners compute as foreach does. Other roundings may give another basis of a null space.
        cls, options = optimizer_class(rule), {**options, "foreach": True}
        ours, reference = (cls(_two_groups(each), **options) for each in (sharded, alone))
        starts = [param.detach().clone() for param in (*sharded, *alone)]
        with (
            # On three ranks, each update is a round of its own, and few travel at once.
            mock.patch.object(driver, "ROUND_BYTES", 1 if name == "three" else 2**22),
            mock.patch.object(driver, "HELD_BYTES", 500 if name == "three" else 2**28),
            # Without batched calls, which round differently.
            mock.patch.object(tensor_lists, "BATCHED_ELEMENTS", 0),
        ):
            for step in range(STEPS):
                for index, (param, start) in enumerate(
                    zip((*sharded, *alone), starts, strict=True)
                ):
                    missing = (index % len(alone) + step) % 5 == 4
                    param.grad = None if missing else torch.cos(start * (step + 1))
                ours.step()
                reference.step()
        found |= {f"{rule}: {key}": each for key, each in differences(ours, reference).items()}
    return found


class Engine:
    """A network of matrices on some ranks, or in one process, and its optimizer."""

    def __init__(self, rule: str, mesh: Any, is_alone: bool = False) -> None:
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(1)
        sizes = [(6, 8), (8, 5), (5, 1)]
        layers = [nn.Linear(*each, bias=False).double() for each in sizes]
        self.network = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
        self.mesh, self.is_alone = mesh, is_alone
        self.takes_part = is_alone or mesh.get_coordinate() is not None
        if not is_alone and self.takes_part:
            for layer in layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(self.network, mesh=mesh)
        options = {
            key: CASES[rule][0][key] for key in ("rank", "update_freq") if key in CASES[rule][0]
        }
        if self.takes_part:
            params = self.network.parameters()
            self.optimizer = optimizer_class(rule)(params, lr=0.05, foreach=True, **options)

    def train(self, start: int) -> None:
        """Take steps with the same data on all ranks."""
        for step in range(start, start + 3):
            generator = torch.Generator().manual_seed(step)
            data = torch.randn(4, 6, generator=generator, dtype=torch.float64)
            self.network(data).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        network, optimizer = get_state_dict(self.network, self.optimizer)
        return {"model": network, "optimizer": optimizer}

    def save(self, folder: str) -> None:
        from torch.distributed import checkpoint

        checkpoint.save(self.state(), checkpoint_id=folder, process_group=self.mesh.get_group())

    def load(self, folder: str) -> None:
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import set_state_dict

        state, group = self.state(), None if self.is_alone else self.mesh.get_group()
        checkpoint.load(state, checkpoint_id=folder, process_group=group, no_dist=self.is_alone)
        weights, states = state["model"], state["optimizer"]
        set_state_dict(
            self.network, self.optimizer, model_state_dict=weights, optim_state_dict=states
        )


def differences_after_full_states(rank: int, rule: str) -> dict[str, float]:
    """Load full states, which rank 0 sends to all; return the differences to one process."""
    from torch.distributed.checkpoint import state_dict

    mesh = _mesh("two")
    first, second = Engine(rule, mesh), Engine(rule, mesh)
    first.train(0)
    get_options = state_dict.StateDictOptions(full_state_dict=True)
    states = state_dict.get_optimizer_state_dict(
        first.network, first.optimizer, options=get_options
    )
    weights = state_dict.get_model_state_dict(first.network)
    set_options = state_dict.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    to_load = {} if rank else states
    state_dict.set_model_state_dict(second.network, weights)
    state_dict.set_optimizer_state_dict(
        second.network, second.optimizer, to_load, options=set_options
    )
    alone = Engine(rule, None, True)
    alone.train(0)
    for engine in (alone, second):
        engine.train(3)
    return differences(second.optimizer, alone.optimizer)


def differences_after_checkpoints(rank: int, rule: str, folder: str) -> dict[str, float]:
    """Train on two ranks, then three, then one; return the differences to one process."""
    two, three = _mesh("two"), _mesh("three")
    first, second = Engine(rule, two), Engine(rule, three)
    if first.takes_part:
        first.train(0)
        first.save(f"{folder}/first")
    distributed.barrier()
    if second.takes_part:
        second.load(f"{folder}/first")
        second.train(3)
        second.save(f"{folder}/second")
    distributed.barrier()
    if rank:
        return {}
    third, uninterrupted = Engine(rule, None, True), Engine(rule, None, True)
    third.load(f"{folder}/second")
    third.train(6)
    for start in (0, 3, 6):
        uninterrupted.train(start)
    return differences(third.optimizer, uninterrupted.optimizer)
