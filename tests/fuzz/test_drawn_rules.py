"""Test a fixed set of drawn rules in every lowering; `make fuzz` draws others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("seed", "num_rules"),
    [("make test", 6), pytest.param("thorough", 96, marks=pytest.mark.thorough)],
)
def test_every_lowering_computes_drawn_rules_right(
    seed: str, num_rules: int, tmp_path: Path
) -> None:
    """The rules run in a process that chooses Triton's interpreter before any import."""
    command = [sys.executable, "-m", "fuzz", "--rules", str(num_rules), "--seed", seed]
    options = ["--seconds", "600", "--processes", "1", "--no-shrink", "--out", str(tmp_path)]
    paths = [str(ROOT / "tests"), str(ROOT)]
    completed = subprocess.run(
        [*command, *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    findings = "\n\n".join(path.read_text() for path in sorted(tmp_path.glob("*.py")))
    assert completed.returncode == 0, f"{completed.stdout}\n{completed.stderr}\n{findings}"
    assert f"{num_rules} drawn" in completed.stdout
