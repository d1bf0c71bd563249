"""Test the rules in found/, which a lowering once computed wrongly or failed on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.finding_files import FOUND, read_finding

ROOT = Path(__file__).parents[2]
NUM_PARTS = 12


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.py")), ids=lambda path: path.stem)
def test_a_found_file_has_every_field(path: Path) -> None:
    """The file's header has everything that the replay needs."""
    assert read_finding(path).lowering


@pytest.mark.one_case_in(NUM_PARTS)
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_no_finding_fails_any_more(part: int) -> None:
    """One process replays a part of the rules, and compiles their C++ together."""
    files = sorted(FOUND.glob("*.py"))[part::NUM_PARTS]
    paths = [str(ROOT / "tests"), str(ROOT)]
    completed = subprocess.run(
        [sys.executable, "-m", "fuzz", "--replay", *map(str, files)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, f"{completed.stdout}\n{completed.stderr}"
