"""Test the committed rows of evidence, and the pages that show them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from spec_files import CATALOGUE

from optgen.spec.read_spec import read_specs
from optgen.verification import evidence, references
from optgen.verification.evidence import (
    Row,
    fill_table,
    from_json,
    imported_classes,
    table,
    title_of_rule,
    to_json,
)
from optgen.verification.packages import NAMES, TORCH
from optgen.verification.references import SOURCES

DOCS = Path(__file__).parents[2] / "docs"
IMPORTS = DOCS / "imported_classes.json"
BY_RULE, BY_PACKAGE = DOCS / "evidence.json", DOCS / "evidence_packages.json"


def rows(file: Path) -> list[Row]:
    return from_json(file.read_text(encoding="utf-8"))


def test_every_optimizer_has_one_row_and_nothing_else_has() -> None:
    specs = read_specs(sorted(CATALOGUE.glob("[!_]*.py")))
    optimizers = {each.module for each in specs if not each.is_function}

    assert {*NAMES} == optimizers | {"lbfgs"}
    assert [row.name for row in rows(BY_RULE)] == list(NAMES)


@pytest.mark.parametrize("file", [BY_RULE, BY_PACKAGE], ids=lambda file: file.stem)
def test_every_row_agrees(file: Path) -> None:
    for row in rows(file):
        assert row.passed
        assert row.errors
        assert row.largest_difference <= row.bound
        assert row.steps >= 30
        assert row.name in NAMES


@pytest.mark.parametrize("file", [BY_RULE, BY_PACKAGE], ids=lambda file: file.stem)
def test_a_file_is_what_the_command_writes(file: Path) -> None:
    assert to_json(rows(file)) == file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "file", "reference"),
    [
        ("evidence.md", BY_RULE, "rule"),
        ("evidence.md", BY_PACKAGE, "package"),
        ("catalogue.md", BY_RULE, "rule"),
    ],
)
def test_a_page_shows_the_rows(page: str, file: Path, reference: str) -> None:
    """Fix a page with `make evidence`."""
    text = (DOCS / page).read_text(encoding="utf-8")
    imported = imported_classes(IMPORTS.read_text(encoding="utf-8"))

    assert fill_table(text, rows(file), reference, imported) == text


def test_an_imported_class_stands_beside_the_row_of_its_version() -> None:
    imported = imported_classes(IMPORTS.read_text(encoding="utf-8"))
    (lion,) = (
        row
        for row in rows(BY_PACKAGE)
        if (row.name, row.reference) == ("lion", "pytorch-optimizer")
    )

    assert imported["pytorch_optimizer:Lion"] == lion.version
    assert table([lion], imported).endswith("| `Lion` |\n")
    assert table([replace(lion, version="0")], imported).endswith("|  |\n")


def test_rows_name_the_sources_of_the_independent_rules() -> None:
    by_rule = {row.name: row for row in rows(BY_RULE) if row.name in SOURCES}

    assert [*by_rule] == sorted(SOURCES)
    for name, row in by_rule.items():
        assert (row.reference, row.source) == (title_of_rule(name), SOURCES[name].address)


def test_the_docstrings_of_rules_leave_sources_to_one_file() -> None:
    """A docstring that named a paper or a repository could contradict the tables."""
    repositories = {each.address.split("github.com/")[-1] for each in SOURCES.values()}
    names = ["arXiv", *("/".join(each.split("/")[:2]) for each in repositories if "//" not in each)]
    for file in sorted(Path(references.__file__).parent.glob("*.py")):
        text = file.read_text(encoding="utf-8")
        docstrings = re.findall(r'"""(Take a step of .*?)"""', text, re.DOTALL)
        assert [each for each in docstrings for name in names if name in each] == []


def test_reasons_of_a_labelled_package_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference of a labelled row is the package's name with the label."""
    (muon,) = (each for each in TORCH if each.case.name == "muon")
    labelled = replace(muon, case=replace(muon.case, label="wide"))
    monkeypatch.setattr(evidence, "TORCH", (labelled,))
    (row,) = evidence.compare_with_references("muon", "package")

    assert row.reference == "torch.optim (wide)"
    assert evidence.bound_reasons(row) == ["both sides iterate in bfloat16"]
    assert evidence.bound_reasons(replace(row, reference="torch.optim")) == []


def test_a_row_has_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a row could show the large bound of one case for the errors of another case."""
    (case,) = (case for case in references.CASES if case.name == "signum")
    monkeypatch.setattr(evidence, "CASES", (case, replace(case, bound=1e-3)))

    with pytest.raises(ValueError, match="the cases of signum have several bounds"):
        evidence.compare_with_references("signum", "rule")
