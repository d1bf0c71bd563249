"""Test that rules with wide reductions step shards as one process steps whole parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed import pair
from distributed.cases import PLACED_SHAPES, difference, shard
from spec_files import spec_file
from torch import Tensor, distributed, nn

import optgen
from optgen import use_lowering

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")


def _two_groups(tensors: list[Tensor], cls: Any) -> list[dict[str, Any]]:
    options = {"weight_decay": 0.1} if "lr" in cls.rule.equal_or_0 else {"lr": 0.05}
    return [{"params": tensors[:4]}, {"params": tensors[4:], **options}]


def _difference_after_training(rank: int, name: str, shapes: Any, lowering: Any) -> float:
    """Return the difference between shards and the for-loop in one process after five steps."""
    mesh = distributed.init_device_mesh("cpu", (2,))
    torch.manual_seed(3)
    drawn = [torch.randn(shape, dtype=torch.float64) for shape, _ in shapes]
    alone = [nn.Parameter(value.clone()) for value in drawn]
    pairs = list(zip(drawn, shapes, strict=True))
    sharded = [nn.Parameter(shard(value, placement, mesh)) for value, (_, placement) in pairs]
    cls: Any = optgen.load(spec_file(name))
    ours, reference = cls(_two_groups(sharded, cls)), cls(_two_groups(alone, cls))
    for step in range(5):
        for own, whole, (_, placement) in zip(sharded, alone, shapes, strict=True):
            whole.grad = torch.cos(whole.detach() * (step + 1))
            own.grad = shard(whole.grad, placement, mesh)
        with use_lowering(lowering):
            ours.step()
        with use_lowering("forloop"):
            reference.step()
    for group, whole_group in zip(ours.param_groups, reference.param_groups, strict=True):
        for state in cls.rule.group_states:
            torch.testing.assert_close(group[state.key], whole_group[state.key])
    return max(difference(a.detach(), b.detach()) for a, b in zip(sharded, alone, strict=True))


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("name", ["odd_wide", "prodigy", "dadapt_adam", "clipped_lamb"])
def test_shards_follow_one_process(name: str, lowering: str) -> None:
    assert max(pair.run(_difference_after_training, name, PLACED_SHAPES, lowering)) < 1e-12


def _error_of_a_gradient_on_one_rank(rank: int) -> str:
    mesh = distributed.init_device_mesh("cpu", (2,))
    params = [
        nn.Parameter(shard(torch.ones(4, 3), placement, mesh)) for _, placement in PLACED_SHAPES[:1]
    ]
    optimizer: Any = optgen.load(spec_file("clipped_lamb"))(params)
    for param in params:
        param.grad = None if rank else torch.ones_like(param)
    try:
        optimizer.step()
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_gradient_on_one_rank_only_is_refused() -> None:
    assert all(
        "about to take different steps" in error
        for error in pair.run(_error_of_a_gradient_on_one_rank)
    )
