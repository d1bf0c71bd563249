"""Test DDP, and DDP with ZeRO-1: a replicated network trains as in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed import models, pair
from distributed.cases import ELEMENTWISE, difference
from parity.cases import CASE_OF_CLASS, Case
from torch import Tensor, distributed, nn

import optgen.optim

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

OPTIONS: tuple[dict[str, Any], ...] = ({}, {"fused": True}, {"foreach": True}, {"foreach": False})


def _ddp_model(views: bool) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(models.model(), gradient_as_bucket_view=views)


def _differences_after_ddp(rank: int, name: str) -> dict[str, float]:
    results = {}
    for options in OPTIONS:
        for views in (True, False):
            network, alone = _ddp_model(views), models.model()
            ours = CASE_OF_CLASS[name].ours(network.parameters(), **options)
            reference = CASE_OF_CLASS[name].ours(alone.parameters(), **options)
            models.train(network, ours, rank)
            models.train(alone, reference)
            differing = models.differences((network.module, ours), (alone, reference))
            results |= {f"{options} {views}: {what}": value for what, value in differing.items()}
    return results


def _differences_after_zero(rank: int, case: Case) -> dict[str, float]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    results = {}
    cls = getattr(optgen.optim, case.name)
    for views in (True, False):
        network, alone = _ddp_model(views), models.model()
        reference = case.ours(alone.parameters())
        ours = ZeroRedundancyOptimizer(
            network.parameters(),
            optimizer_class=cls,
            parameters_as_bucket_view=views,
            **case.options,
        )
        models.train(network, ours, rank)
        models.train(alone, reference)
        ours.consolidate_state_dict(to=0)
        states = reference.state_dict()
        resumed, expected = (case.ours(each.parameters()) for each in (network, alone))
        resumed.load_state_dict(ours.state_dict() if rank == 0 else states)
        expected.load_state_dict(states)
        differing = models.differences((network.module, resumed), (alone, expected))
        results |= {f"{views}: {what}": value for what, value in differing.items()}
    return results


def _errors_of_muon(rank: int) -> dict[str, float]:
    """Train only the matrices, with Muon; under ZeRO-1 each rank steps some of them."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def matrices(module: nn.Module) -> list[Tensor]:
        return [param for param in module.parameters() if param.ndim == 2]

    alone = models.model()
    models.train(alone, optgen.optim.Muon(matrices(alone)))
    results = {}
    for is_sharded in (False, True):
        network, cls = _ddp_model(False), optgen.optim.Muon
        params = matrices(network)
        ours = ZeroRedundancyOptimizer(params, cls) if is_sharded else cls(params)
        models.train(network, ours, rank)
        pairs = zip(matrices(network), matrices(alone), matrices(models.model()), strict=True)
        for index, (param, expected, before) in enumerate(pairs):
            results[f"{is_sharded} {index}"] = difference(
                param.detach() - before, expected - before
            )
    return results


def _sparse_training_is_equal(rank: int) -> bool:
    """Train an embedding whose gradients have different rows on each rank; tell if it is equal."""
    from torch.nn.parallel import DistributedDataParallel

    def embedding() -> nn.Embedding:
        torch.manual_seed(1)
        return nn.Embedding(6, 3, sparse=True)

    alone, rows = embedding(), torch.tensor([[1, 2, 2], [2, 4, 1]])
    network = DistributedDataParallel(embedding())
    ours, reference = (
        optgen.optim.SparseAdam(module.parameters(), lr=0.1) for module in (network, alone)
    )
    for _ in range(3):
        _loss(network(rows[rank])).backward()
        (sum(_loss(alone(row)) for row in rows) / 2).backward()
        for optimizer in (ours, reference):
            optimizer.step()
            optimizer.zero_grad()
    return torch.allclose(network.module.weight, alone.weight, rtol=1e-6)


def _differences_after_lbfgs(rank: int) -> dict[str, float]:
    """Train with LBFGS. Its line search uses the mean loss, so that both ranks decide alike."""
    network, alone = _ddp_model(False), models.model()
    optimizers = []
    for module in (network, alone):
        options = {"max_iter": 4, "line_search_fn": "strong_wolfe"}
        optimizers.append(optgen.optim.LBFGS(module.parameters(), **options))

        def closure(module: Any = module, optimizer: Any = optimizers[-1]) -> Tensor:
            inputs, targets = models.batch(0)
            if module is network:
                inputs, targets = models.half(rank, inputs), models.half(rank, targets)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(module(inputs), targets)
            loss.backward()
            mean = loss.detach()
            if module is network:
                distributed.all_reduce(mean, distributed.ReduceOp.AVG)
            return mean

        for _ in range(3):
            optimizers[-1].step(closure)
    pairs = zip(network.parameters(), alone.parameters(), strict=True)
    results = {str(index): difference(a, b) for index, (a, b) in enumerate(pairs)}
    return {index: value for index, value in results.items() if value > 1e-9}


def _loss(output: Tensor) -> Tensor:
    return (output**2 + output).sum()


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("name", [*ELEMENTWISE, "Adafactor"])
def test_ddp_trains_as_one_process(name: str) -> None:
    for found in pair.run(_differences_after_ddp, name):
        assert found == {}


def test_muon_trains_as_one_process() -> None:
    """The bound is loose: products in bfloat16 amplify differences in a gradient's last bits."""
    for found in pair.run(_errors_of_muon):
        assert max(found.values()) < 5e-3


def test_sparse_gradients_train_as_one_process() -> None:
    assert all(pair.run(_sparse_training_is_equal))


def test_lbfgs_trains_as_one_process() -> None:
    for found in pair.run(_differences_after_lbfgs):
        assert found == {}


@pytest.mark.parametrize("name", [*ELEMENTWISE, "Adafactor"])
def test_zero_trains_as_one_process(name: str) -> None:
    for found in pair.run(_differences_after_zero, CASE_OF_CLASS[name]):
        assert found == {}
