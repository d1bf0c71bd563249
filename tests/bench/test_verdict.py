"""Test targets: reached, missed, not measured."""

from __future__ import annotations

import pytest

from optgen.bench.report import misses, verdict_table
from optgen.bench.results import Cell, Figures, Results
from optgen.bench.target_figures import faster, mean, of_limit
from optgen.bench.targets import DENSE, ELEMENTWISE, FACTORED, of_machine
from optgen.bench.variants import DEFAULT, FUSED, LIMIT, OURS
from optgen.bench.verdict import Target, verdicts


def figures(ours: float, **others: float) -> Figures:
    """Return the medians of one cell."""
    titles = {"limit": LIMIT, "default": DEFAULT, "fused": FUSED}
    named = {OURS: ours} | {titles[key]: value for key, value in others.items()}
    return {title: {"median": value, "min": value, "cold": value} for title, value in named.items()}


def step(name: str, tensors: str = "1e6") -> Cell:
    return Cell("step", name, tensors)


RESULTS: Results = {
    step("AdamW"): figures(2.0, limit=1.0, default=20.0, fused=8.0),
    step("SGD"): figures(1.0, limit=0.9, default=2.0),
}


def test_missed_by_the_one_that_misses() -> None:
    (found,) = verdicts([Target("x", of_limit(["AdamW", "SGD"], ["1e6"]), 0.75)], RESULTS)

    assert found.values == {"AdamW, 1e6": 0.5, "SGD, 1e6": 0.9}
    assert found.missed == ["AdamW, 1e6"]
    assert found.word == "missed: 1/2"
    assert found.worst == "AdamW, 1e6"
    assert list(misses([found])) == ["x, wanted ≥ 0.75: AdamW, 1e6 0.5"]


def test_reached_by_all_of_them() -> None:
    (found,) = verdicts([Target("x", of_limit(["AdamW", "SGD"], ["1e6"]), 0.5)], RESULTS)

    assert found.word == "reached by 2"
    assert list(misses([found])) == []


def test_not_measured_is_not_reached() -> None:
    """A form that torch lacks for a class counts as not measured too."""
    some = [of_limit(["AdamW"], ["gpt2"]), faster(["SGD"], ["1e6"], FUSED)]

    assert [v.word for v in verdicts([Target("x", s, 0) for s in some], RESULTS)] == [
        "not measured"
    ] * 2


@pytest.mark.parametrize(
    ("value", "word"), [(1.2, "reached"), (1.3, "missed"), (float("nan"), "missed")]
)
def test_at_most(value: float, word: str) -> None:
    assert Target("x", lambda results: {"a": value}, most=1.2).judge({}).word == word
    assert Target("x", lambda results: {"a": -value}, least=-1.2).judge({}).word == word


def test_the_geometric_mean_of_torchs_fastest_and_default() -> None:
    fastest = mean(faster(["AdamW", "SGD"], ["1e6"]), 4)(RESULTS)
    default = mean(faster(["AdamW", "SGD"], ["1e6"], DEFAULT), 4)(RESULTS)

    assert fastest == {"2 of 4": pytest.approx((4.0 * 2.0) ** 0.5)}
    assert default == {"2 of 4": pytest.approx((10.0 * 2.0) ** 0.5)}


def test_the_targets_of_a_machine() -> None:
    """A processor that converts bfloat16 has more targets; every row prints."""
    plain, converting = of_machine({}), of_machine({"converts_bfloat16": True})

    assert len(converting) == len(plain) + 3
    table = list(verdict_table(verdicts(converting, RESULTS)))
    assert len(table) == len(converting) + 1
    assert [row[-1] for row in table if row[0].startswith("of the limit, 1e6")] == [
        "missed: 1/2",
        "not measured",
    ]


def test_which_classes_targets_are_about() -> None:
    assert FACTORED == ("Adafactor",)
    assert set(DENSE) == {*ELEMENTWISE, *FACTORED}
    assert len(DENSE) == 12
