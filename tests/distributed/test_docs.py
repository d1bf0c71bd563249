"""Test that the Python blocks of docs/distributed.md run unchanged in two processes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import models, pair
from torch import distributed, nn
from torch.nn.functional import mse_loss

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

PAGE = Path(__file__).parents[2] / "docs" / "distributed.md"
SECTIONS = ("FSDP2", "DDP", "ZeRO-1", "Checkpoints")


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = models.model()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


def _blocks() -> dict[str, str]:
    """Return the Python code of every section by its title."""
    sections = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    pairs = zip(sections[1::2], sections[2::2], strict=True)
    return {
        title: "".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)) for title, text in pairs
    }


def _all_weights_change(rank: int, section: str, folder: str) -> bool:
    """Run a section's code; tell whether all weights have changed.

    The section Checkpoints uses variables of FSDP2, so it runs after that.
    """
    os.chdir(folder)
    variables: dict[str, Any] = {"model": _Model(), "loss_function": mse_loss}
    variables["batches"] = [[models.half(rank, part) for part in models.batch(s)] for s in range(3)]
    before = [param.detach().clone() for param in variables["model"].parameters()]
    sections = ["FSDP2", section] if section == "Checkpoints" else [section]
    for title in sections:
        exec(compile(_blocks()[title], f"{PAGE.name}, {title}", "exec"), variables)
    after = [getattr(p, "full_tensor", lambda p=p: p)() for p in variables["model"].parameters()]
    return not any(map(torch.equal, before, after))


@pytest.mark.parametrize("section", SECTIONS)
def test_the_code_of_a_section_trains_all_weights(section: str, tmp_path: Path) -> None:
    assert pair.run(_all_weights_change, section, str(tmp_path)) == [True, True]
