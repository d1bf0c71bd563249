"""Test what all commands share: help, usage errors, names of the catalogue, missing libraries."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cli.commands import ROOT, run

import optgen
from optgen import emit
from optgen.cli import BUILD_EXTRA


def test_help_names_every_command() -> None:
    text = run("--help").output

    for command in ("build", "list", "show", "new", "check", "verify", "bench"):
        assert command in text


def test_an_unknown_option_is_a_usage_error() -> None:
    assert run("build", "--nonsense").exit_code == 2


@pytest.mark.parametrize("name", ["adamw", "AdamW"])
def test_a_command_takes_the_name_of_a_module_or_of_a_class(name: str) -> None:
    result = run("check", name)

    assert result.exit_code == 0, result.output
    assert result.output.startswith("AdamW: ok")
    assert run("show", name).output == run("show", "adamw").output


def test_version_prints_the_version() -> None:
    result = run("--version")

    assert result.exit_code == 0
    assert result.output == f"optgen {optgen.__version__}\n"


def test_version_does_not_import_torch() -> None:
    code = "from optgen.cli import main; main(); import sys; print('torch' in sys.modules)"
    command = [sys.executable, "-c", code, "--version"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert found.stdout == f"optgen {optgen.__version__}\nFalse\n"


def test_an_unknown_name_has_a_hint() -> None:
    result = run("show", "adamm")

    assert result.exit_code == 2
    assert "did you mean adam?" in result.output


def test_a_file_name_without_py_has_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dual.py").write_text("")
    monkeypatch.chdir(tmp_path)
    result = run("show", "dual")

    assert result.exit_code == 2
    assert "did you mean dual.py?" in result.output


def test_a_path_that_is_no_python_file_is_refused(outside_checkout: Path) -> None:
    (outside_checkout / "heavy.txt").write_text("a rule\n")

    assert "heavy.txt is not a spec file" in " ".join(run("check", "heavy.txt").output.split())


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    """The command says what to install if typer is missing."""
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('no typer', name='typer')\n")
    result = subprocess.run(
        [sys.executable, "-m", "optgen", "list"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 4
    tools = "'jinja2>=3.1' 'ruff==0.17.5' 'sympy>=1.13' 'typer>=0.16'"
    assert result.stderr == f"optgen: typer is not installed: python -m pip install {tools}\n"


def test_the_command_names_the_libraries_of_the_extra_build() -> None:
    """An installed command cannot read pyproject.toml, so it has a list of its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert list(BUILD_EXTRA) == project["optional-dependencies"]["build"]
    assert f"ruff=={emit.RUFF}" in BUILD_EXTRA
