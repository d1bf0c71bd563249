"""Test that the code of the tutorials runs, in the order of each page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from optgen.cli.app import app
from website.entries import ROOT

DOCS = ROOT / "docs"


def blocks(page: Path, language: str = "python") -> list[str]:
    """Return the code blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run(page: str) -> dict[str, object]:
    """Run the blocks of a page in one namespace; a spec becomes a file."""
    namespace: dict[str, object] = {}
    for block in blocks(DOCS / page):
        if "@optimizer" in block:
            Path("my_rule.py").write_text(block, encoding="utf-8")
        else:
            exec(compile(block, page, "exec"), namespace)
    return namespace


@pytest.mark.parametrize(
    "page",
    ["choose.md", "train.md", "sam.md", "tutorials/write-your-own.md", "tutorials/compose.md"],
)
def test_the_code_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert run(page)


def test_the_commands_of_your_own_optimizer_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = DOCS / "tutorials" / "write-your-own.md"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_rule.py").write_text(blocks(page)[0], encoding="utf-8")
    commands = "".join(blocks(page, "sh")).splitlines()

    assert len(commands) == 5
    for command in commands:
        result = CliRunner().invoke(app, command.split()[1:], prog_name="optgen")
        assert result.exit_code == 0, result.output


def test_every_remedy_ends_lower_than_plain_low_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = run("tutorials/low-precision.md")
    train, remedies = namespace["train"], namespace["WAYS"]

    assert callable(train)
    assert isinstance(remedies, dict)
    assert train(*remedies["plain"]) == 0.25
    assert all(train(*arguments) < 0.1 for name, arguments in remedies.items() if name != "plain")


def test_the_added_lowering_prints_a_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    run("tutorials/add-a-lowering.md")

    assert "def step(p, g, m, *, lr, betas, weight_decay):" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", ["AdamW", "SOAP"])
def test_two_processes_train_save_and_load(name: str, tmp_path: Path) -> None:
    """The page says that the script is the same with SOAP."""
    (script,) = blocks(DOCS / "tutorials" / "many-machines.md")
    (tmp_path / "train.py").write_text(script.replace("AdamW", name), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    assert "group 0: " in result.stdout
