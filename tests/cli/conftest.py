"""Folders to stand in: one that is no checkout, and one that is."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.commands import RULE, run


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is no checkout, with one spec in it, to stand in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heavy.py").write_text(RULE)
    return tmp_path


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of one spec to stand in, freshly built."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "optgen"\n')
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "heavy.py").write_text(RULE)
    monkeypatch.chdir(tmp_path)
    assert run("build").exit_code == 0
    return tmp_path
