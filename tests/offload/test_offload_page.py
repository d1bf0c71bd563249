"""Test what the page on offloaded optimizers says: its code, its options, its bytes."""

from __future__ import annotations

import gc
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import optgen
from optgen import compose, modifiers

PAGE = (Path(__file__).parents[2] / "docs" / "offload.md").read_text(encoding="utf-8")
MEMORY: list[tuple[Any, dict[str, Any], str, float, float]] = [
    ("adamw", {}, '`gradients="stay"`', 4, 12),
    (
        "adamw",
        {"gradients": "leave", "hide": "backward", "clip_norm": None},
        '`gradients="leave"`, `hide="backward"`',
        2,
        12,
    ),
    (
        "adamw",
        {"gradients": "leave", "accumulation": 1, "clip_norm": None},
        '`gradients="leave"`, `accumulation=1`',
        2,
        14,
    ),
    ("adamw", {"gradients": "leave", "clip_norm": 1.0}, '`gradients="leave"`', 2, 16),
    (
        compose("adamw", modifiers.state_dtype("bfloat16")),
        {},
        '`gradients="stay"`, moments in bfloat16 (`modifiers.state_dtype("bfloat16")`)',
        4,
        8,
    ),
    (
        compose("adamw", modifiers.quantized()),
        {},
        '`gradients="stay"`, moments in 8 bits (`modifiers.quantized()`)',
        4,
        6.03,
    ),
    (
        "adamw",
        {"state_dir": "."},
        '`gradients="stay"`, 12 more bytes on a disk (`state_dir=`)',
        4,
        0,
    ),
]
SIZE = 512


def test_the_code_runs_in_the_order_of_the_page(
    sim: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        exec(compile(code, "offload.md", "exec"), namespace)

    assert float(namespace["loss"].detach().cpu()) < 0.05  # the first loss is above 0.1
    assert re.fullmatch(r"norm before clipping: \d\.\d{3}\n", capsys.readouterr().out)
    namespace["optimizer"].close()


def test_the_table_has_all_options() -> None:
    named = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    parameters = inspect.signature(optgen.offload).parameters.values()

    assert named == [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]


def settled_bytes(sim: Any) -> int:
    """Return the bytes that the device holds when nothing is under way."""
    torch.accelerator.synchronize()
    held: int = sim.counts()["device"]
    return held


@pytest.mark.parametrize(("rule", "options", "row", "on_device", "on_host"), MEMORY)
def test_the_memory_table(
    rule: Any, options: dict[str, Any], row: str, on_device: float, on_host: float, sim: Any
) -> None:
    """Bytes of weights and gradients after a backward pass, and of states and kept gradients."""
    gc.collect()
    before = settled_bytes(sim)
    layer = nn.Linear(SIZE, SIZE, bias=False).bfloat16().to("sim")
    with optgen.offload(rule, layer.parameters(), bucket_bytes=2**20, slots=1, **options) as made:
        layer(layer.weight.detach()[:1]).sum().backward()
        made.step()
        made.synchronize()
        layer.zero_grad()
        layer(layer.weight.detach()[:1]).sum().backward()
        device_bytes = settled_bytes(sim) - before
        sums = made._stepper.host.sums
        kept = sum(each.nbytes for each in sums.by_param.values()) if sums else 0
        host_bytes = made.report().host_bytes + kept

    gigabytes = f"{8 * on_device:.0f} / {8 * on_host:.0f} GB"
    assert f"| {row} | {on_device} | {on_host} | {gigabytes} |" in PAGE
    if "state_dir" in options:
        assert f"{made.report().file_bytes / SIZE**2:.0f} more bytes on a disk" in row
    assert device_bytes / SIZE**2 == pytest.approx(on_device, abs=0.05)
    assert host_bytes / SIZE**2 == pytest.approx(on_host, abs=0.05)
