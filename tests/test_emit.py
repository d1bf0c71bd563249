"""Test how generated texts become files: strict templates, the formatter, atomic writes."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from optgen import emit


def test_a_missing_template_variable_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        emit.environment().from_string("{{ absent }}").render()


def test_format_sorts_imports_and_drops_unused_ones() -> None:
    text = "import torch\nfrom math import (log,\n sqrt)\nx = sqrt( torch.pi )\n"

    expected = "from math import sqrt\n\nimport torch\n\nx = sqrt(torch.pi)\n"
    assert emit.format_python(text, emit.require_ruff()) == expected


def test_format_refuses_what_is_not_python() -> None:
    with pytest.raises(RuntimeError, match="not Python"):
        emit.format_python("x = = 1\n", emit.require_ruff())


def test_changes_are_updates_creations_and_removals(tmp_path: Path) -> None:
    """Only files that differ are written, and only files with optgen's mark are removed."""
    (tmp_path / "same.py").write_text("1\n")
    (tmp_path / "other.py").write_text("2\n")
    (tmp_path / "gone.cpp").write_text(f"// {emit.MARK} from specs/x.py.\n")
    (tmp_path / "mine.py").write_text("# by hand\n")

    found = list(emit.changes(tmp_path, {"same.py": "1\n", "other.py": "3\n", "new.py": "4\n"}))

    verbs = [(change.path.name, change.verb) for change in found]
    assert verbs == [("other.py", "update"), ("new.py", "create"), ("gone.cpp", "remove")]
    for change in found:
        change.apply()
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert texts == {"same.py": "1\n", "other.py": "3\n", "new.py": "4\n", "mine.py": "# by hand\n"}


def test_a_failed_write_leaves_the_old_text(tmp_path: Path) -> None:
    """The failed write also leaves no temporary file beside the old one."""
    path = tmp_path / "file.py"
    path.write_text("old\n")

    with pytest.raises(UnicodeEncodeError):
        emit.write_atomically(path, "\udc80")
    assert [p.name for p in tmp_path.iterdir()] == ["file.py"]
    assert path.read_text() == "old\n"
