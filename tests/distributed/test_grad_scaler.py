"""Test optgen.amp.GradScaler on shards: equal to torch's scaler, on both ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed import pair
from distributed.cases import SHARDED, difference, shard
from torch import distributed, nn

from optgen import amp, compose, modifiers, use_lowering

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")


SHARDED_TENSORS = [
    (shape, placement) for shape, placement in SHARDED if placement
]  # torch's scaler refuses plain tensors beside DTensors


class CountingScaler(amp.GradScaler):
    """Our scaler, which counts its reads of all gradients."""

    reads = 0

    def _unscale_grads_(self, *args: Any) -> Any:
        self.reads += 1
        return super()._unscale_grads_(*args)


def _trained(
    scaler_class: Any, lowering: str, mesh: Any
) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Return parameters, states and scaler; a gradient overflows on one rank in steps 0 and 3."""
    torch.manual_seed(3)
    cls: Any = compose("adamw", modifiers.clip_norm(0.5), modifiers.skip_nonfinite)
    drawn = [torch.randn(shape, dtype=torch.float64) for shape, _ in SHARDED_TENSORS]
    params = [
        nn.Parameter(shard(v, placement, mesh))
        for v, (_, placement) in zip(drawn, SHARDED_TENSORS, strict=True)
    ]
    optimizer = cls([{"params": params[:4]}, {"params": params[4:], "lr": 0.05}], fused=True)
    scaler = scaler_class("cpu", init_scale=8.0, growth_interval=2)
    scaler.scale(torch.zeros(()))
    for step in range(6):
        for param, value, (_, placement) in zip(params, drawn, SHARDED_TENSORS, strict=True):
            grad = scaler.get_scale() * torch.cos(value * (step + 1))
            if step in (0, 3) and param is params[1]:
                grad.view(-1)[0] = torch.inf
            param.grad = shard(grad, placement, mesh)
        with use_lowering(lowering):
            scaler.step(optimizer)
        scaler.update()
    assert getattr(scaler, "reads", 0) == 0
    states = [value for state in optimizer.state.values() for value in state.values()]
    return params, states, scaler.state_dict()


def _compared(rank: int, lowering: str) -> tuple[float, bool, float, float]:
    mesh = distributed.init_device_mesh("cpu", (2,))
    ours, theirs = (_trained(k, lowering, mesh) for k in (CountingScaler, torch.amp.GradScaler))
    largest_difference = 0.0
    for mine, other in zip(ours[0] + ours[1], theirs[0] + theirs[1], strict=True):
        a, b = (each.detach() for each in (mine, other))
        a, b = (each.full_tensor() if hasattr(each, "full_tensor") else each for each in (a, b))
        largest_difference = (
            max(largest_difference, difference(a, b)) if a.numel() else largest_difference
        )
    counts = [float(value) for value in ours[1] if value.dim() == 0]
    return largest_difference, ours[2] == theirs[2], max(counts), ours[2]["scale"]


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_shards_follow_torchs_scaler(lowering: str) -> None:
    for largest_difference, same_scaler, steps, scale in pair.run(_compared, lowering):
        assert largest_difference == 0
        assert same_scaler
        assert steps == 4
        assert scale == 8.0
