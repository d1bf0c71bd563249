"""Test optgen new, which writes a spec to start from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cli.commands import run, snapshot

from optgen import emit


def test_new_writes_a_spec_that_builds(outside_checkout: Path) -> None:
    assert run("new", "my_rule").exit_code == 0
    assert run("check", "my_rule.py").exit_code == 0
    assert run("build", "my_rule.py", "--out", "out").exit_code == 0
    for command in (["format", "--check"], ["check", "--extend-select=B"]):
        found = subprocess.run(
            [emit.require_ruff(), *command, "--isolated", "--line-length=100", "my_rule.py"],
            check=False,
        )
        assert found.returncode == 0


def test_new_writes_no_noqa_comment_in_a_checkout(checkout: Path) -> None:
    """A checkout's pyproject.toml has the exception for ruff, so the spec has no noqa comment."""
    assert run("new", "my_rule").exit_code == 0
    assert (checkout / "specs" / "my_rule.py").read_text().startswith('"""MyRule: ')


@pytest.mark.parametrize("name", ["heavy", "MyRule", "my-rule", "class", "../up"])
def test_new_refuses_existing_files_and_invalid_names(name: str, outside_checkout: Path) -> None:
    """The command refuses a file that exists, and a name that is not snake_case."""
    before = snapshot(outside_checkout)

    assert run("new", name).exit_code == 2
    assert snapshot(outside_checkout) == before
