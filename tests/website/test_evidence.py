"""Test the tables of recorded comparisons, and the cells from the catalogue."""

from __future__ import annotations

import pytest

from website import evidence as evidence_module
from website.entries import entries
from website.evidence import catalogue_cells, catalogue_rows, comparison_table, evidence

RECORD = {
    "name": "lion",
    "reference": "lion-pytorch",
    "version": "0.2.3",
    "source": "https://example.org/lion",
    "steps": 30,
    "dtype": "float64",
    "errors": {"forloop": 2.5e-16, "foreach": None},
    "bound": 1e-12,
    "passed": False,
}


def test_a_record_becomes_a_row() -> None:
    text = comparison_table("lion", [RECORD])

    assert (
        "| [lion-pytorch](https://example.org/lion) | 0.2.3 | 30 steps, float64 "
        "| forloop: 2.5e-16<br>foreach: not finite | **no**, 1e-12 |"
    ) in text.replace("\N{NO-BREAK SPACE}", " ")
    assert "optgen verify lion" in text
    assert comparison_table("soap", [RECORD]) == ""


def test_every_optimizer_says_what_it_was_compared_with() -> None:
    assert len(catalogue_rows()) >= 44
    for each in entries():
        assert evidence(each).startswith("Compared with")


def test_links_of_the_catalogue_hold_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    lion = next(each for each in entries() if each.name == "lion")
    row = ("[paper](#where)", "0.0e+00", "[views](views.md)")
    monkeypatch.setattr(evidence_module, "catalogue_rows", lambda: {"lion": row})

    assert catalogue_cells(lion) == (
        "[paper](../catalogue.md#where)",
        "0.0e+00",
        "[views](../views.md)",
    )
