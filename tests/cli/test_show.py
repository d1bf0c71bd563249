"""Test what optgen list and optgen show print."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.commands import ROOT, run
from conftest import Golden


def test_a_lowering_that_does_not_exist_is_refused() -> None:
    result = run("show", "adam", "--lowering", "Forloop")

    assert result.exit_code == 2
    message = " ".join(result.output.split())
    assert "'Forloop' is not one of optimizer, function, forloop, foreach," in message


def test_list_prints_the_catalogue(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)

    golden.check(run("list").output)


def test_list_prints_the_same_outside_a_checkout(
    outside_checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command prints the catalogue that ships with the package."""
    elsewhere = run("list").output
    monkeypatch.chdir(ROOT)

    assert elsewhere == run("list").output


@pytest.mark.parametrize(
    "lowering", ["optimizer", "forloop", "foreach", "fused_cpu", "fused_triton"]
)
def test_show_prints_the_checked_in_file(lowering: str) -> None:
    name = "__init__" if lowering == "optimizer" else lowering
    (path,) = (ROOT / "generated" / "adam").glob(f"{name}.*")

    assert run("show", "adam", "--lowering", lowering).output == path.read_text()


def test_show_prints_the_spec_its_latex_and_its_ir(golden: Golden, outside_checkout: Path) -> None:
    golden.check(run("show", "heavy.py").output, "spec")
    golden.check(run("show", "heavy.py", "--latex").output, "latex")
    golden.check(run("show", "heavy.py", "--ir").output, "ir")


def test_show_prints_the_cpp_of_a_rule_on_whole_matrices() -> None:
    """The command prints the C++ of the sweeps, and says why the rule has no Triton file."""
    path = str(ROOT / "specs" / "soap.py")
    result = run("show", path, "--lowering", "fused_triton")
    assert result.exit_code == 2
    message = "SOAP has no fused_triton: the state gram_left is a square matrix"
    assert message in " ".join(result.output.split()).replace("│ ", "")
    cpp = run("show", path, "--lowering", "fused_cpu").output
    assert cpp.count("Elementwise part of a step of SOAP") > 3
    assert "sweep3(" in run("show", path, "--lowering", "outlined").output
    assert "u = U @ u" in run("show", path, "--ir").output


def test_show_of_a_derived_class_names_its_base() -> None:
    result = run("show", "adamw", "--lowering", "forloop")

    assert result.exit_code == 2
    message = "AdamW runs Adam's forloop: show Adam instead"
    assert message in " ".join(result.output.split())
    assert r"\beta_1 m_{t-1}" in run("show", "adamw", "--latex").output  # AdamW has Adam's rule
    assert "m = beta1 * m" in run("show", "adamw", "--ir").output
