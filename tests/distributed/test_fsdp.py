"""Test FSDP2: a network sharded by `fully_shard` trains as in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed import models, pair
from distributed.cases import ELEMENTWISE, difference
from parity.cases import CASE_OF_CLASS
from torch import distributed
from torch_versions import HAS_2_12, HAS_2_15

import optgen.optim

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

OPTIONS: tuple[dict[str, Any], ...] = ({}, {"fused": True}, {"foreach": True}, {"foreach": False})
FAILURES_OF_TORCH = [
    ("SGD", {"fused": True}),
    ("Adagrad", {"fused": True}),
    ("Rprop", {"foreach": True}),
    *([] if HAS_2_15 else [("Rprop", {"foreach": False})]),
    ("Adafactor", {"foreach": True}),
    ("Adafactor", {"foreach": False}),
    *([("Muon", {})] if HAS_2_12 else []),
]
"""Classes and options with which torch's own classes fail."""


def _sharded_network(*mesh: int) -> Any:
    from torch.distributed.fsdp import fully_shard

    names = ("replicated", "sharded")[-len(mesh) :]
    network = models.model()
    device_mesh = distributed.init_device_mesh("cpu", mesh, mesh_dim_names=names)
    for layer in list(network)[::2]:
        fully_shard(layer, mesh=device_mesh)
    return fully_shard(network, mesh=device_mesh)


def _differences_after_training(
    rank: int, name: str, all_options: tuple[Any, ...], *mesh: int
) -> dict[str, float]:
    results = {}
    for options in all_options:
        network, alone = _sharded_network(*mesh), models.model()
        ours = CASE_OF_CLASS[name].ours(network.parameters(), **options)
        reference = CASE_OF_CLASS[name].ours(alone.parameters(), **options)
        models.train(network, ours, rank)
        models.train(alone, reference)
        differing = models.differences((network, ours), (alone, reference))
        results |= {f"{options}: {what}": value for what, value in differing.items()}
    return results


def _errors_of_muon_beside_adamw(rank: int, all_options: tuple[Any, ...]) -> dict[str, float]:
    """Train a network's matrices with Muon and its vectors with AdamW; return relative errors."""
    results = {}
    for options in all_options:
        changes = []
        for network, own_rank in ((_sharded_network(2), rank), (models.model(), None)):
            params = list(network.parameters())
            before = [_full_tensor(param) for param in params]
            optimizers = [
                optgen.optim.Muon([p for p in params if p.ndim == 2], lr=0.02, **options),
                optgen.optim.AdamW([p for p in params if p.ndim == 1], **options),
            ]
            _train(network, optimizers, own_rank)
            pairs = zip(params, before, strict=True)
            changes.append([_full_tensor(param) - value for param, value in pairs])
        for index, (ours, alone) in enumerate(zip(*changes, strict=True)):
            results[f"{options} {index}"] = difference(ours, alone)
    return results


def _train(network: Any, optimizers: list[Any], rank: int | None) -> None:
    for step in range(models.STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        inputs, targets = models.batch(step)
        if rank is not None:
            inputs, targets = models.half(rank, inputs), models.half(rank, targets)
        torch.nn.functional.mse_loss(network(inputs), targets).backward()
        for optimizer in optimizers:
            optimizer.step()


def _full_tensor(param: Any) -> torch.Tensor:
    value = param.detach()
    return value.full_tensor() if hasattr(value, "full_tensor") else value.clone()


def _differences_with_a_scaler(rank: int, name: str, fused: bool) -> Any:
    """Train with a gradient scaler; rank 1 overflows in the second step, which both ranks skip.

    Return the differences to one process, and the last scale.
    """
    network, alone = _sharded_network(2), models.model()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    ours = getattr(optgen.optim, name)(network.parameters(), fused=fused or None)
    reference = getattr(torch.optim, name)(alone.parameters())
    for step in range(3):
        inputs, targets = models.batch(step)
        output = network(models.half(rank, inputs))
        scaler.scale(torch.nn.functional.mse_loss(output, models.half(rank, targets))).backward()
        if step == 1 and rank == 1:
            next(network.parameters()).grad.to_local()[0, 0] = torch.inf
        scaler.step(ours)
        scaler.update()
        torch.nn.functional.mse_loss(alone(inputs), targets).backward()
        if step != 1:
            reference.step()
        ours.zero_grad()
        reference.zero_grad()
    return models.differences((network, ours), (alone, reference)), scaler.get_scale()


def _errors_of_torch(rank: int) -> list[str]:
    results = []
    for name, options in FAILURES_OF_TORCH:
        network = _sharded_network(2)
        params = [p for p in network.parameters() if p.ndim == 2]
        optimizer = getattr(torch.optim, name)(params, **options)
        for param in params:
            param.grad = torch.ones_like(param)
        try:
            optimizer.step()
        except (RuntimeError, NotImplementedError) as error:
            results.append(f"{name} {options}: {error}".partition("\n")[0])
    return results


@pytest.mark.one_case_in(5)
@pytest.mark.parametrize("name", [*ELEMENTWISE, "Adafactor"])
def test_fsdp2_trains_as_one_process(name: str) -> None:
    for found in pair.run(_differences_after_training, name, OPTIONS, 2):
        assert found == {}


@pytest.mark.parametrize("mesh", [(1, 2), (2, 1)])
@pytest.mark.parametrize("name", ["AdamW", "Adafactor"])
def test_replicated_and_sharded_networks_train_as_one_process(
    name: str, mesh: tuple[int, int]
) -> None:
    for found in pair.run(_differences_after_training, name, OPTIONS, *mesh):
        assert found == {}


def test_muon_trains_matrices_beside_another_optimizer() -> None:
    for found in pair.run(_errors_of_muon_beside_adamw, OPTIONS):
        assert found
        assert {what: value for what, value in found.items() if value > 5e-3} == {}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["AdamW", "Adafactor"])
def test_a_gradient_scaler_skips_a_step_on_both_ranks(name: str, fused: bool) -> None:
    for found, scale in pair.run(_differences_with_a_scaler, name, fused):
        assert found == {}
        assert scale == 32.0


def test_torchs_classes_still_fail() -> None:
    """If this test fails, torch's classes can do more now, and docs/distributed.md must say so."""
    for found in pair.run(_errors_of_torch):
        assert [each.partition("}")[0] + "}" for each in found] == [
            f"{name} {options}" for name, options in FAILURES_OF_TORCH
        ]
