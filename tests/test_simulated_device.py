"""Run the tests on the simulated device, each folder in a process of its own.

torch's autograd asks once in a process which devices there are, before the first backward pass. And
a registered device stays. So these tests share no process with others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sampling

TESTS = Path(__file__).parent


@pytest.mark.parametrize("folder", ["device", "offload"])
def test_in_a_process_of_its_own(folder: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS / folder)]
    if os.environ.get(sampling.THOROUGH) == "1":
        command += ["--numprocesses", "2", "--dist", "worksteal"]

    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
