"""Tests in Triton's interpreter: it must be chosen before a kernel is decorated, and where it is
nothing compiles, so they run in a process of their own that an ordinary run of the file starts.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
inside = pytest.mark.skipif(not INTERPRETED, reason="runs in the process with the interpreter")
outside = pytest.mark.skipif(INTERPRETED, reason="this is the process with the interpreter")


def run_inside(file: str) -> None:
    """Run the tests of a file that are marked `inside`; fail as they do."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
