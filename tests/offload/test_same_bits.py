"""Test that offloaded training has the bits of the composition, whatever the device's timing."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from offload.schedules import drawn
from offload.scripts import RULES, Script, offloaded, reference
from torch import Tensor, nn

import optgen
from optgen.offloading.host_rule import offload_rule

MODES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "forward": {"hide": "forward"},
    "leave": {"gradients": "leave", "accumulation": 1},
    "leave, forward": {"gradients": "leave", "hide": "forward", "accumulation": 1},
    "backward": {"gradients": "leave", "hide": "backward"},
}
reference_of = cache(reference)


def script_for(mode: str, seed: int) -> Script:
    """Return a script that a mode can run: gradients that have left cannot be dropped or summed."""
    script = Script.drawn(seed, (1,) if "leave" in MODES[mode].get("gradients", "") else (1, 1, 2))
    if MODES[mode].get("gradients") != "leave":
        return script
    kept = ["average"]
    if mode != "backward":  # it reads the others before the pass
        kept += ["rate", "weights"]
    steps = tuple((passes, event if event in kept else "") for passes, event in script.steps)
    clip_norm = None if mode == "backward" else script.clip_norm
    return replace(script, clip_norm=clip_norm, steps=steps)


def different(a: list[Tensor], b: list[Tensor]) -> list[int]:
    """Return the indices of parameters that differ in a bit."""
    return [index for index, pair in enumerate(zip(a, b, strict=True)) if not torch.equal(*pair)]


def check(script: Script, **options: Any) -> None:
    """Run a script in both ways, and compare all bits."""
    got, norms = offloaded(script, "sim", **options)

    assert not different(reference_of(script, norms), got), options


@pytest.mark.one_case_in(40)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(40))
def test_random_scripts(seed: int, mode: str, sim: Any) -> None:
    """Each script runs with five schedules of the device."""
    for schedule in range(5):
        settings, options = drawn(100 * seed + schedule)
        sim.configure(**settings)
        check(script_for(mode, seed), **options, **MODES[mode])


@pytest.mark.parametrize("rule", ["adamw", "lamb"])
def test_a_parameter_that_is_not_contiguous(rule: str, sim: Any) -> None:
    """A rule that sums has the bits of a contiguous copy: the composition sums in another order."""
    values = torch.randn(24, 40, generator=torch.Generator().manual_seed(0)).bfloat16()
    ours, theirs = nn.Parameter(values.to("sim").t()), nn.Parameter(values.t().contiguous())
    reference = offload_rule(rule, clips=False).public([theirs], lr=0.01)
    with optgen.offload(rule, [ours], lr=0.01, keep_on_device=0, bucket_bytes=4096) as optimizer:
        for number in range(3):
            theirs.grad = (values.t() * number).cos().contiguous()
            ours.grad = theirs.grad.to("sim")
            optimizer.step()
            reference.step()

    assert not ours.is_contiguous()
    assert torch.equal(ours.detach().cpu(), theirs.detach())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bucket_bytes", [4096, 128])
def test_every_rule(rule: str, bucket_bytes: int, sim: Any) -> None:
    """A parameter that is larger than a bucket is stepped in pieces, if the rule is elementwise."""
    script = Script(rule, 0, True, None, True, ((1, ""), (1, "drop"), (1, "weights"), (1, "")))
    if bucket_bytes == 128 and rule in ("lamb", "adafactor"):
        with pytest.raises(ValueError, match="stepped as a whole by this rule"):
            offloaded(script, "sim", bucket_bytes=bucket_bytes)
    else:
        check(script, bucket_bytes=bucket_bytes)
