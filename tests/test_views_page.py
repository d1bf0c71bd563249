"""Test docs/views.md: its code runs, and states have the shapes that the page describes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = (Path(__file__).parent.parent / "docs" / "views.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def run(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(compile(block, "docs/views.md", "exec"), names)
    return names


def test_states_of_flat_convolutions_have_two_axes() -> None:
    names = run(BLOCKS[0])
    states = [names["optimizer"].state[weight] for weight in names["convolutions"]]
    assert [(s["row_var"].shape, s["col_var"].shape) for s in states] == [
        ((16, 1), (1, 27)),
        ((8, 1), (1, 144)),
    ]


def test_the_momentum_of_heads_has_the_parameters_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "head_muon.py").write_text(BLOCKS[1], encoding="utf-8")
    names = run(BLOCKS[2])
    assert names["optimizer"].state[names["qkv"]]["momentum_buffer"].shape == (48, 16)
    assert names["qkv"]._version > 1  # the steps changed the parameter
