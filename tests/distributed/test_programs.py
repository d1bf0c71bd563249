"""Test changes of mode of sharded parameters: equal to one process, without communication."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed import pair
from distributed.cases import SHARED, difference, share
from spec_files import spec_file
from torch import distributed, nn

import optgen

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

SPEC = spec_file("schedule_free_adamw")


def _train(rank: int, lowering: str) -> float:
    """Return the difference between shards and one process, in both modes."""
    mesh = distributed.init_device_mesh("cpu", (2,))
    drawn = [torch.randn(shape, dtype=torch.float64) for shape, _ in SHARED]
    alone = [nn.Parameter(value.clone()) for value in drawn]
    shared = [
        nn.Parameter(share(value, placement, mesh))
        for value, (_, placement) in zip(drawn, SHARED, strict=True)
    ]
    both: Any = [optgen.load(SPEC)(params, warmup_steps=2) for params in (shared, alone)]
    found = []
    for step in range(4):
        for own, whole, (_, placement) in zip(shared, alone, SHARED, strict=True):
            whole.grad = torch.cos(whole.detach() * (step + 1))
            own.grad = share(whole.grad, placement, mesh)
        with optgen.use_lowering(lowering):
            for change in ("step", "eval", "train"):
                for optimizer in both:
                    getattr(optimizer, change)()
                pairs = zip(shared, alone, strict=True)
                found += [difference(own.detach(), whole.detach()) for own, whole in pairs]
    return max(found)


@pytest.mark.parametrize("lowering", ["foreach", "forloop", "fused_cpu"])
def test_shards_change_mode_as_whole_parameters_do(lowering: str) -> None:
    assert max(pair.run(_train, lowering)) < 1e-12
