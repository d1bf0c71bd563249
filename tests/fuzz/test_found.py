"""Test the files of found/: rules that once failed, and must be right in every lowering."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.kept import FOUND, read

ROOT = Path(__file__).parents[2]
PARTS = 6


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.py")), ids=lambda path: path.stem)
def test_a_finding_can_be_read(path: Path) -> None:
    """The file's header has everything that the replay needs."""
    assert read(path).lowering


@pytest.mark.sampled(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_finding_fails_any_more(part: int) -> None:
    """One process replays a part of the rules: their C++ is one compilation."""
    files = sorted(FOUND.glob("*.py"))[part::PARTS]
    paths = [str(ROOT / "tests"), str(ROOT)]
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", "--replay", *map(str, files)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
