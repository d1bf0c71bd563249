"""Test verdicts on targets: reached, missed, not measured."""

from __future__ import annotations

import pytest

from benchmarks.cpu_targets import (
    ELEMENTWISE,
    VECTOR_CLASSES,
    Target,
    fraction_of_limit,
    geometric_mean,
    missed_target_lines,
    speedup,
    targets_of_machine,
    verdict_table,
    verdicts,
)
from optgen.bench.results import Cell, Figures, Results
from optgen.bench.variants import DEFAULT, FACTORED, FUSED, LIMIT, OURS


def figures(ours: float, **others: float) -> Figures:
    """Return the figures of one cell. Median, minimum and cold time of a title are equal."""
    titles = {"limit": LIMIT, "default": DEFAULT, "fused": FUSED}
    named = {OURS: ours} | {titles[key]: value for key, value in others.items()}
    return {title: {"median": value, "min": value, "cold": value} for title, value in named.items()}


def step_cell(name: str, tensors: str = "1e6") -> Cell:
    return Cell("step", name, tensors)


RESULTS: Results = {
    step_cell("AdamW"): figures(2.0, limit=1.0, default=20.0, fused=8.0),
    step_cell("SGD"): figures(1.0, limit=0.9, default=2.0),
}


def test_one_slow_class_misses_the_target_and_is_listed() -> None:
    (found,) = verdicts([Target("x", fraction_of_limit(["AdamW", "SGD"], ["1e6"]), 0.75)], RESULTS)

    assert found.values == {"AdamW, 1e6": 0.5, "SGD, 1e6": 0.9}
    assert found.missed_figures == ["AdamW, 1e6"]
    assert found.summary == "missed: 1/2"
    assert found.worst_figure == "AdamW, 1e6"
    assert list(missed_target_lines([found])) == ["x, wanted ≥ 0.75: AdamW, 1e6 0.5"]


def test_a_target_is_reached_if_all_classes_reach_it() -> None:
    (found,) = verdicts([Target("x", fraction_of_limit(["AdamW", "SGD"], ["1e6"]), 0.5)], RESULTS)

    assert found.summary == "reached by 2"
    assert list(missed_target_lines([found])) == []


def test_a_target_without_figures_is_not_measured() -> None:
    """This holds for a missing cell, and for a form that torch lacks for a class."""
    some = [fraction_of_limit(["AdamW"], ["gpt2"]), speedup(["SGD"], ["1e6"], FUSED)]

    assert [v.summary for v in verdicts([Target("x", s, 0) for s in some], RESULTS)] == [
        "not measured"
    ] * 2


@pytest.mark.parametrize(
    ("value", "word"), [(1.2, "reached"), (1.3, "missed"), (float("nan"), "missed")]
)
def test_a_bound_includes_its_own_value_and_excludes_nan(value: float, word: str) -> None:
    assert Target("x", lambda results: {"a": value}, most=1.2).judge({}).summary == word
    assert Target("x", lambda results: {"a": -value}, least=-1.2).judge({}).summary == word


def test_a_geometric_mean_is_labelled_with_its_number_of_figures() -> None:
    """Two of four figures are measured.

    Torch's fastest form takes 8/2 and 2/1 times as long as ours, its default form 20/2 and 2/1
    times as long.
    """
    fastest = geometric_mean(speedup(["AdamW", "SGD"], ["1e6"]), 4)(RESULTS)
    default = geometric_mean(speedup(["AdamW", "SGD"], ["1e6"], DEFAULT), 4)(RESULTS)

    assert fastest == {"2 of 4": pytest.approx((4.0 * 2.0) ** 0.5)}
    assert default == {"2 of 4": pytest.approx((10.0 * 2.0) ** 0.5)}


def test_a_machine_that_converts_bfloat16_has_three_more_targets() -> None:
    """The machine's processor converts bfloat16 in hardware.

    The table has a header, and a row for each target, measured or not.
    """
    plain, converting = targets_of_machine({}), targets_of_machine({"converts_bfloat16": True})

    assert len(converting) == len(plain) + 3
    table = list(verdict_table(verdicts(converting, RESULTS)))
    assert len(table) == len(converting) + 1
    assert [row[-1] for row in table if row[0].startswith("of the limit, 1e6")] == [
        "missed: 1/2",
        "not measured",
    ]


def test_the_targets_cover_twelve_classes() -> None:
    assert FACTORED == ("Adafactor",)
    assert set(VECTOR_CLASSES) == {*ELEMENTWISE, *FACTORED}
    assert len(VECTOR_CLASSES) == 12
