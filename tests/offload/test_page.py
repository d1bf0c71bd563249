"""Test that the code of the page on offloading runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "offload.md"


def test_the_code_of_the_page_lowers_the_loss(sim: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(code, "offload.md", "exec"), {})

    assert float(capsys.readouterr().out.split()[-1]) < 0.5  # the first loss is above 1
