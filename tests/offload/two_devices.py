"""Train a model whose layers are on two simulated devices, offloaded, and the same on the CPU.

Run as a program, with DEVICE_COUNT=2 in the environment. It prints what differs.
"""

from __future__ import annotations

from typing import Any

import device
import torch
from offload.scripts import WIDTH, inputs
from torch import Tensor, nn

import optgen
from optgen.offloading.clipping import clip_factor
from optgen.offloading.host_rule import FACTOR, offload_rule

MODES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "forward": {"hide": "forward"},
    "leave": {"gradients": "leave", "hide": "forward", "accumulation": 1},
}


class Parts(nn.Module):
    """Two layers; the second may be on another device."""

    def __init__(self, *places: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(WIDTH, WIDTH).to(torch.bfloat16) for _ in places]
        self.layers = nn.ModuleList(
            layer.to(place) for layer, place in zip(layers, places, strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x.to(layer.weight.device)).tanh()
        return x


def train(model: Parts, optimizer: Any) -> list[Tensor]:
    for batch in inputs(5):
        model(batch).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if hasattr(optimizer, "synchronize"):
        optimizer.synchronize()
    return [param.detach().cpu() for param in model.parameters()]


def differing(mode: str, clip_norm: float | None) -> list[int]:
    """Return the indices of parameters that differ."""
    ours, theirs = Parts("sim:0", "sim:1", "sim:0"), Parts("cpu", "cpu", "cpu")
    norms: list[float] = []
    with optgen.offload(
        "adamw",
        ours.parameters(),
        module=ours if "hide" in MODES[mode] else None,
        clip_norm=clip_norm,
        keep_on_device=24 if mode == "forward" else 0,
        bucket_bytes=512,
        slots=2,
        time_limit=20.0,
        lr=1e-2,
        **MODES[mode],
    ) as optimizer:
        optimizer.register_step_post_hook(lambda own, *_: norms.append(own.grad_norm))
        got = train(ours, optimizer)
    reference = offload_rule("adamw", clip_norm is not None).device(theirs.parameters(), lr=1e-2)

    def clip(own: Any, *_: Any) -> None:
        for group in own.param_groups:
            group[FACTOR] = clip_factor(norms.pop(0), clip_norm or 0.0)

    if clip_norm is not None:
        reference.register_step_pre_hook(clip)
    pairs = zip(got, train(theirs, reference), strict=True)
    return [index for index, pair in enumerate(pairs) if not torch.equal(*pair)]


if __name__ == "__main__":
    device.load()
    assert torch.accelerator.device_count() == 2
    for seed in range(2):
        device.configure(latency=1e-3, jitter=2e-3, compute=2e-4, seed=seed)
        for mode in MODES:
            for clip_norm in (None, 0.01):
                if found := differing(mode, clip_norm):
                    print(seed, mode, clip_norm, found)
