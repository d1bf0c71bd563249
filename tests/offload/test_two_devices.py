"""Test one optimizer whose parameters are on two devices, in a process that has two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.thorough
def test_bits_of_a_model_on_two_devices() -> None:
    """With each place of gradients and each way to hide steps, with and without clipping."""
    tests = Path(__file__).parent.parent
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("two_devices.py"))],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": f"{tests}:{tests.parent}", "DEVICE_COUNT": "2"},
    )

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
