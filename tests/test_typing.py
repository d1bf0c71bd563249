"""Test that a user's strictly typed file may use the package.

Here mypy skips torch, because reading torch takes most of the time. `make types` reads torch, too.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILE = """
import torch

import optgen

params = [torch.nn.Parameter(torch.ones(2))]
optimizer: torch.optim.Optimizer = optgen.load("x.py")(params, lr=1e-3)
Rule = optgen.load("adamw")
named = Rule(torch.nn.Linear(2, 2).named_parameters(), 1e-3, weight_decay=0.1, betas=(0.9, 0.99))
named.init_state()
named.step()
optgen.optim.AdamW(params, lr=1e-3).step()
optgen.use_lowering("foreach")
with optgen.use_lowering(None):
    print(optgen.explain(named), optgen.__version__, optgen.spec.hyper)


@optgen.use_lowering("forloop")
def train(steps: int) -> float:
    return float(steps)


total: float = train(3)
"""
OPTIONS = """
[mypy]
strict = true
follow_imports = silent
[mypy-torch,torch.*,numpy,numpy.*,sympy.*,triton.*]
follow_imports = skip
"""


@pytest.mark.slow
def test_mypy_accepts_correct_uses_and_finds_wrong_ones(tmp_path: Path) -> None:
    (tmp_path / "optgen").mkdir()
    for part in (*(ROOT / "optgen").iterdir(), *(ROOT / name for name in ("generated", "specs"))):
        (tmp_path / "optgen" / part.name).symlink_to(part)
    (tmp_path / "user.py").write_text(FILE)
    wrong = FILE + "\ntrain('three')\noptgen.nothing\n"
    (tmp_path / "wrong.py").write_text(wrong)
    (tmp_path / "mypy.ini").write_text(OPTIONS)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini"]
    run = subprocess.run(
        [*command, "user.py", "wrong.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    found = [line for line in run.stdout.splitlines() if line.startswith(("user.py", "wrong.py"))]

    assert [line.split(":")[0] for line in found] == ["wrong.py"] * 2, run.stdout + run.stderr
