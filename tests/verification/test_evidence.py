"""Test the committed rows of evidence, and the pages that show them."""

from __future__ import annotations

from pathlib import Path

import pytest
from spec_files import CATALOGUE

from optgen.spec.read_spec import read_specs
from optgen.verification.catalogue import NAMES
from optgen.verification.evidence import Row, from_json, to_json
from optgen.verification.pages import filled

DOCS = Path(__file__).parents[2] / "docs"
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
        assert row.worst <= row.bound
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

    assert filled(text, rows(file), reference) == text
