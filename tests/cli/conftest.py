"""Fixtures that change the current folder: to a checkout, or to a folder that is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.commands import RULE, make_checkout


@pytest.fixture
def outside_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with one spec that is no checkout, and return it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heavy.py").write_text(RULE)
    return tmp_path


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a checkout with one spec, freshly built, and return it."""
    monkeypatch.chdir(tmp_path)
    make_checkout(tmp_path, "heavy.py", RULE)
    return tmp_path
