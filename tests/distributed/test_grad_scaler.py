"""Test that optgen.amp.GradScaler on shards does what torch's scaler does, on both ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed import pair
from distributed.cases import PLACED_SHAPES, difference, shard
from torch import distributed, nn

from optgen import amp, compose, modifiers, use_lowering

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")


# torch's scaler refuses plain tensors beside DTensors.
DTENSOR_SHAPES = [(shape, placement) for shape, placement in PLACED_SHAPES if placement]


class CountingScaler(amp.GradScaler):
    """Our scaler, which counts how often it reads all gradients itself."""

    reads = 0

    def _unscale_grads_(self, *args: Any) -> Any:
        self.reads += 1
        return super()._unscale_grads_(*args)


def _train(
    scaler_class: Any, lowering: str, mesh: Any
) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Return parameters, states and the scaler's state; one rank overflows in steps 0 and 3."""
    torch.manual_seed(3)
    cls: Any = compose("adamw", modifiers.clip_norm(0.5), modifiers.skip_nonfinite)
    drawn = [torch.randn(shape, dtype=torch.float64) for shape, _ in DTENSOR_SHAPES]
    params = [
        nn.Parameter(shard(v, placement, mesh))
        for v, (_, placement) in zip(drawn, DTENSOR_SHAPES, strict=True)
    ]
    optimizer = cls([{"params": params[:4]}, {"params": params[4:], "lr": 0.05}], fused=True)
    scaler = scaler_class("cpu", init_scale=8.0, growth_interval=2)
    scaler.scale(torch.zeros(()))
    for step in range(6):
        for param, value, (_, placement) in zip(params, drawn, DTENSOR_SHAPES, strict=True):
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


def _full_tensor(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _compare_scalers(rank: int, lowering: str) -> tuple[float, bool, float, float]:
    """Return the largest difference, whether the scalers are equal, the step count, the scale."""
    mesh = distributed.init_device_mesh("cpu", (2,))
    classes = (CountingScaler, torch.amp.GradScaler)
    ours, theirs = (_train(scaler_class, lowering, mesh) for scaler_class in classes)
    largest_difference = 0.0
    for mine, other in zip(ours[0] + ours[1], theirs[0] + theirs[1], strict=True):
        a, b = (_full_tensor(each.detach()) for each in (mine, other))
        if a.numel():
            largest_difference = max(largest_difference, difference(a, b))
    counts = [float(value) for value in ours[1] if value.dim() == 0]
    return largest_difference, ours[2] == theirs[2], max(counts), ours[2]["scale"]


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_shards_step_as_with_torchs_scaler(lowering: str) -> None:
    for largest_difference, same_scaler, steps, scale in pair.run(_compare_scalers, lowering):
        assert largest_difference == 0
        assert same_scaler
        assert steps == 4
        assert scale == 8.0
