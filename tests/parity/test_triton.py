"""The same tests through fused Triton, in a process with its interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from interpreter import INTERPRETED
from parity.cases import CASES
from parity.classes import CLOSURE, SPARSE

TESTS = Path(__file__).parents[1]
TRAJECTORIES = "test_a_lowering_follows_torch"
SINGLE, HALF = "test_single_precision", "test_half_precision"
CHECKPOINTS = "test_checkpoints and continues and fused_triton and (float32 or bfloat16)"
FUSED = [case for case in CASES if case.name not in (*CLOSURE, *SPARSE)]


@pytest.mark.skipif(INTERPRETED, reason="this is that process")
@pytest.mark.parametrize(
    ("folder", "chosen", "least"),
    [
        ("parity", TRAJECTORIES, len(FUSED)),
        ("parity", SINGLE, 24),
        ("parity", f"{HALF} and bfloat16", 24),
        ("parity", f"{HALF} and not bfloat16", 24),
        ("parity", CHECKPOINTS, 4 * len({case.name for case in FUSED})),
        ("lowerings", "test_a_word_means_what_it_says", 30),
        ("properties", "test_every_lowering_is_the_rule", 1),
    ],
)
def test_through_the_interpreter(folder: str, chosen: str, least: int) -> None:
    pytest.importorskip("triton")

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, folder],
        cwd=TESTS,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    summary = run.stdout.splitlines()[-1]
    assert int(summary.split(" passed")[0]) >= least, summary
