"""Test that train() and eval() change shards as they change whole parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed import pair
from distributed.cases import PLACED_SHAPES, difference, shard
from spec_files import spec_file
from torch import distributed, nn

import optgen

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

SPEC = spec_file("schedule_free_adamw")


def _difference_after_training(rank: int, lowering: str) -> float:
    """Return the largest difference between shards and whole parameters, in both modes."""
    mesh = distributed.init_device_mesh("cpu", (2,))
    drawn = [torch.randn(shape, dtype=torch.float64) for shape, _ in PLACED_SHAPES]
    alone = [nn.Parameter(value.clone()) for value in drawn]
    sharded = [
        nn.Parameter(shard(value, placement, mesh))
        for value, (_, placement) in zip(drawn, PLACED_SHAPES, strict=True)
    ]
    optimizers: Any = [optgen.load(SPEC)(params, warmup_steps=2) for params in (sharded, alone)]
    results = []
    for step in range(4):
        for own, whole, (_, placement) in zip(sharded, alone, PLACED_SHAPES, strict=True):
            whole.grad = torch.cos(whole.detach() * (step + 1))
            own.grad = shard(whole.grad, placement, mesh)
        with optgen.use_lowering(lowering):
            for method in ("step", "eval", "train"):
                for optimizer in optimizers:
                    getattr(optimizer, method)()
                pairs = zip(sharded, alone, strict=True)
                results += [difference(own.detach(), whole.detach()) for own, whole in pairs]
    return max(results)


@pytest.mark.parametrize("lowering", ["foreach", "forloop", "fused_cpu"])
def test_train_and_eval_change_shards_as_whole_parameters(lowering: str) -> None:
    assert max(pair.run(_difference_after_training, lowering)) < 1e-12
