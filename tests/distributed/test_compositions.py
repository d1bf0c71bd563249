"""Test that compositions step shards as one process steps whole parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from distributed import pair
from distributed.cases import PLACED_SHAPES, difference, shard
from torch import Tensor, distributed, nn

from optgen import compose, modifiers, use_lowering

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

COMPOSITIONS = {
    "adamw": ("clip_norm", "cautious", "ema", "zero_grad"),
    "adafactor": ("clip_tensor_norm", "update_floor", "hyperball"),
    "adamax": ("gradient_noise", "ema_nesterov", "decay_after"),
    "sgd": ("accumulate", "adaptive_clip", "trust_ratio", "kahan"),
    "adam": ("skip_nonfinite", "centralize", "amsgrad", "update_floor"),
    "radam": ("centralize", "lookahead", "schedule_free"),
}


def _two_groups(tensors: list[Tensor]) -> list[dict[str, Any]]:
    return [{"params": tensors[:4]}, {"params": tensors[4:], "lr": 0.05}]


def _difference_after_training(rank: int, base: str, names: Sequence[str], lowering: Any) -> float:
    """Return the difference between shards and the for-loop in one process after five steps."""
    mesh = distributed.init_device_mesh("cpu", (2,))
    torch.manual_seed(3)
    drawn = [torch.randn(shape, dtype=torch.float64) for shape, _ in PLACED_SHAPES]
    alone = [nn.Parameter(value.clone()) for value in drawn]
    sharded = [
        nn.Parameter(shard(v, placement, mesh))
        for v, (_, placement) in zip(drawn, PLACED_SHAPES, strict=True)
    ]
    arguments = {"accumulate": (2,), "lookahead": (2,), "update_floor": (2.0, base == "adam")}
    chosen = [getattr(modifiers, name)(*arguments.get(name, ())) for name in names]
    cls: Any = compose(base, *chosen)
    ours, reference = cls(_two_groups(sharded), lr=0.1), cls(_two_groups(alone), lr=0.1)
    for step in range(5):
        for own, whole, (_, placement) in zip(sharded, alone, PLACED_SHAPES, strict=True):
            whole.grad = torch.cos(whole.detach() * (step + 1))
            if "skip_nonfinite" in names and step == 2 and whole is alone[1]:
                whole.grad.view(-1)[0] = torch.nan  # on one rank only
            own.grad = shard(whole.grad, placement, mesh)
        with use_lowering(lowering):
            ours.step()
        with use_lowering("forloop"):
            reference.step()
    if "zero_grad" in names:
        grads: list[Any] = [param.grad for param in (*alone, *sharded) if param.grad is not None]
        assert not any(getattr(grad, "_local_tensor", grad).any() for grad in grads)
    for group, whole_group in zip(ours.param_groups, reference.param_groups, strict=True):
        for state in cls.rule.group_states:
            torch.testing.assert_close(group[state.key], whole_group[state.key])
    return max(difference(a.detach(), b.detach()) for a, b in zip(sharded, alone, strict=True))


@pytest.mark.one_case_in(10)
@pytest.mark.parametrize(
    ("base", "lowering"),
    [
        (base, lowering)
        for base, names in COMPOSITIONS.items()
        for lowering in ("forloop", "foreach", "fused_cpu")
        if lowering != "fused_cpu"
        or "gradient_noise" not in names  # not for random numbers of shards
    ],
)
def test_shards_follow_one_process(base: str, lowering: str) -> None:
    assert max(pair.run(_difference_after_training, base, COMPOSITIONS[base], lowering)) < 1e-12
