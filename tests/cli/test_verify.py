"""Test optgen verify: its report, its files, and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from cli.commands import ROOT, RULE, run

from optgen import jit
from optgen.verification import evidence, packages
from optgen.verification.evidence import END_MARK, start_mark

KEYS = ["name", "reference", "version", "source", "steps", "dtype", "errors", "bound", "passed"]


def test_verify_prints_a_report_and_writes_files(tmp_path: Path) -> None:
    rows, page = tmp_path / "rows.json", tmp_path / "page.md"
    page.write_text(f"Before.\n\n{start_mark('rule')}\n{END_MARK}\n\nAfter.\n")

    result = run(
        "verify", "Lion", "--reference", "rule", "--json", str(rows), "--markdown", str(page)
    )

    assert result.exit_code == 0, result.output
    assert "lion agrees with independent rule (paper)" in result.stdout
    assert "foreach: the largest difference of an element is " in result.stdout
    (row,) = json.loads(rows.read_text())
    assert list(row) == KEYS
    assert row["errors"].keys() >= {"forloop", "foreach"}
    text = page.read_text()
    assert text.startswith("Before.\n\n<!--")
    assert text.endswith("-->\n\nAfter.\n")
    assert "| `lion` | [independent rule (paper)](https://arxiv.org/abs/2302.06675) | " in text


def test_a_class_of_torch_is_compared_with_torch() -> None:
    result = run("verify", "sgd", "--reference", "package")

    assert result.exit_code == 0, result.output
    assert "sgd agrees with torch.optim, version 2." in result.stdout


def test_verify_fails_if_an_error_exceeds_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = (case for case in evidence.CASES if case.name == "lion")
    wrong = replace(case, options={**case.options, "lr": 0.011})
    monkeypatch.setattr(evidence, "CASES", (wrong,))

    result = run("verify", "lion", "--reference", "rule")

    assert result.exit_code == 1
    assert "lion DOES NOT AGREE with independent rule (paper)" in result.stdout


def test_the_table_of_a_page_keeps_its_own_columns(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    head = "| name | difference | to use it |\n|---|---|---|\n"
    table = f"{head}| `lion` | 1 | a tenth |\n| `sgd` | 2 | |\n"
    page.write_text(f"{start_mark('rule')}\n{table}{END_MARK}\n")

    assert run("verify", "lion", "--reference", "rule", "--markdown", str(page)).exit_code == 0

    lion, sgd = page.read_text().splitlines()[3:5]
    assert re.fullmatch(r"\| `lion` \| \d\.\de-\d\d \| a tenth \|", lion)
    assert sgd == "| `sgd` | 2 | |"


def test_verify_says_why_it_refuses_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "installed_packages", lambda name: [])
    for arguments, message in (
        (("lionn",), "no optimizer is called 'lionn': did you mean 'lion'?"),
        ((), "name an optimizer, such as lion, or give --all"),
        (("lion", "--all"), "give names or --all, not both"),
        (("lion", "--reference", "paper"), "no reference paper; there are rule and package"),
        (("lion", "--reference", "package"), "pip install lion-pytorch"),
        (("normuon", "--reference", "package"), "use --reference rule"),
    ):
        result = run("verify", *arguments)
        assert result.exit_code == 2
        assert message in " ".join(result.output.replace("│", " ").split())


def test_verify_checks_its_files_before_it_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page without the lines around the table keeps its text, and no rule is compared."""
    monkeypatch.setattr(evidence, "compare_with_references", None)
    page = tmp_path / "page.md"
    page.write_text("A page.\n")
    for option, file, message in (
        ("--json", tmp_path / "none" / "rows.json", "no such folder"),
        ("--markdown", page, "has no place for the table: add the lines <!-- by optgen verify"),
    ):
        result = run("verify", "lion", option, str(file))
        assert result.exit_code == 2
        assert message in " ".join(result.output.replace("│", " ").split())
    assert page.read_text() == "A page.\n"


def test_a_new_page_can_be_written_again(tmp_path: Path) -> None:
    page = tmp_path / "page.md"

    for _ in range(2):
        assert run("verify", "signum", "--markdown", str(page)).exit_code == 0
        assert page.read_text().startswith("<!-- by optgen verify -->\n\n| name | ")
        assert page.read_text().count("| `signum` | ") == 1


def test_the_package_of_the_author_is_listed_first() -> None:
    assert evidence.distribution_names("lion")[0] == "lion-pytorch"
    assert {package.case.name for package in packages.LIBRARIES} <= {*evidence.SOURCES}


def test_a_spec_file_is_compared_with_its_own_rule(tmp_path: Path) -> None:
    rule, rows = tmp_path / "my_rule.py", tmp_path / "rows.json"
    rule.write_text(RULE)

    result = run("verify", str(rule), "--json", str(rows))

    assert result.exit_code == 0, result.output
    assert "Heavy agrees with its own rule (float64, defaults), version " in result.stdout
    in_float64, in_float32 = json.loads(rows.read_text())
    assert in_float64["errors"].keys() >= {"forloop", "foreach", "fused_cpu"}
    assert max(in_float64["errors"].values()) < 1e-12
    assert (in_float32["dtype"], in_float32["passed"]) == ("float32", True)


def test_verify_fails_if_a_lowering_differs_from_its_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, other = tmp_path / "my_rule.py", tmp_path / "other.py"
    rule.write_text(RULE)
    other.write_text(RULE.replace("beta * b", "0.5 * beta * b"))
    wrong = jit.load(other)
    monkeypatch.setattr(jit, "load", lambda spec: wrong)

    result = run("verify", str(rule))

    assert result.exit_code == 1
    assert "Heavy DOES NOT AGREE with its own rule (float64, defaults)" in result.stdout


def test_verify_says_why_it_refuses_a_spec_file(tmp_path: Path) -> None:
    rule, wrong = (tmp_path / f"{name}.py" for name in ("my_rule", "wrong"))
    rule.write_text(RULE)
    wrong.write_text(RULE.replace("lr * b", "lr * nothing"))
    for arguments, exit_code, message in (
        ((tmp_path / "none.py",), 2, "no such file"),
        ((wrong,), 3, "unknown name `nothing`"),
        (("lion", rule), 2, "give spec files, or names of the catalogue"),
        ((rule, "--all"), 2, "give spec files, or names of the catalogue"),
        ((rule, "--reference", "rule"), 2, "--reference is for names of the catalogue"),
        ((rule, "--markdown", tmp_path / "page.md"), 2, "--markdown is for names of the catalogue"),
        ((ROOT / "specs" / "averaging.py",), 2, "this is a function"),
    ):
        result = run("verify", *map(str, arguments))
        assert result.exit_code == exit_code, result.output
        assert message in " ".join(result.output.replace("│", " ").split())
