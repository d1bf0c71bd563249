"""Test FSDP 1, which flattens parameters: only elementwise rules step flat partitions."""

import warnings

import pytest
import torch
from distributed import pair
from torch import distributed, nn

from optgen.optim import Adafactor, AdamW

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.LayerNorm(3), nn.Linear(3, 2, bias=False))


def loss_after_training(net: nn.Module, opt: torch.optim.Optimizer) -> float:
    inputs = torch.linspace(-1, 1, 20).reshape(4, 5)
    for _ in range(4):
        loss = net(inputs).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def loss_of_one_process(name: str) -> float:
    net = model()
    return loss_after_training(net, getattr(torch.optim, name)(net.parameters(), lr=1e-2))


def loss_or_error(rank: int, name: str, use_orig_params: bool, strategy: str) -> float | str:
    """Return the last loss of a model under FSDP, or the optimizer's error."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FSDP 1 is deprecated, and so is NO_SHARD
        net = FullyShardedDataParallel(
            model(),
            use_orig_params=use_orig_params,
            sharding_strategy=ShardingStrategy[strategy],
            device_id=torch.device("cpu"),
        )
        cls = {"AdamW": AdamW, "Adafactor": Adafactor}[name]
        try:
            return loss_after_training(net, cls(net.parameters(), lr=1e-2))
        except RuntimeError as error:
            return str(error)


@pytest.mark.parametrize("use_orig_params", [False, True])
def test_an_elementwise_rule_steps_flat_partitions(use_orig_params: bool) -> None:
    losses = pair.run(loss_or_error, "AdamW", use_orig_params, "FULL_SHARD")
    assert losses == pytest.approx([loss_of_one_process("AdamW")] * 2, rel=1e-6)


@pytest.mark.parametrize("use_orig_params", [False, True])
def test_a_rule_that_is_not_elementwise_refuses_flat_partitions(use_orig_params: bool) -> None:
    for error in pair.run(loss_or_error, "Adafactor", use_orig_params, "FULL_SHARD"):
        assert "Adafactor cannot step a flat partition: FSDP has flattened its parameters" in error


def test_any_rule_steps_parameters_that_are_not_sharded() -> None:
    losses = pair.run(loss_or_error, "Adafactor", True, "NO_SHARD")
    assert losses == pytest.approx([loss_of_one_process("Adafactor")] * 2, rel=1e-6)
