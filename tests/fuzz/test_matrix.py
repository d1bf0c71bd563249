"""Test that the matrix names every combination; `make compositions` runs them."""

from __future__ import annotations

import pytest

from fuzz import by_stages, matrix
from optgen.compositions import list_modifiers
from optgen.spec.composition.names import CompositionError
from optgen.spec.read_spec import read_spec

COUNT = len(list_modifiers())


def test_every_modifier_has_twenty_rules() -> None:
    cases = [case.split() for case in matrix.cases("rules")]
    assert {name for _, name in cases} == {*list_modifiers()}
    assert len({rule for rule, _ in cases}) * COUNT == len(cases) > 20 * COUNT


@pytest.mark.parametrize("rule", [*matrix.CATALOGUE, *matrix.OTHERS])
def test_every_rule_takes_a_modifier_unless_it_is_sparse(rule: str) -> None:
    if rule == "sparse_adam":
        with pytest.raises(CompositionError, match="sparse"):
            matrix.compose_case(f"{rule} ema")
        return
    text, settings = matrix.compose_case(f"{rule} ema")

    assert "ema" in text
    assert len(settings) == 2


def test_all_pairs_are_named() -> None:
    """Two modifiers of one stage stand in both orders."""
    pairs = [case.split()[1:] for case in matrix.cases("pairs")]
    assert {frozenset(pair) for pair in pairs} == {
        frozenset((a, b)) for a in list_modifiers() for b in list_modifiers() if a != b
    }
    assert ["cautious", "grams"] in pairs
    assert ["grams", "cautious"] in pairs
    assert ["ema", "cautious"] not in pairs
    assert {*by_stages.pairs()} == {(first, second) for first, second in pairs}


@pytest.mark.parametrize("case", ["adamw clip_norm adaptive_clip", "#1 cautious"])
def test_a_case_always_composes_the_same_text(case: str) -> None:
    text, settings = matrix.compose_case(case)
    assert (text, settings) == matrix.compose_case(case)
    (algorithm,) = read_spec(matrix.random_spec(text))
    assert algorithm.name == "Random"
    assert settings[0].dtype == "float64"
    assert all(len(shape) < 3 for s in settings for shape in s.shapes) or "adaptive" not in case


def test_modifiers_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(CompositionError, match="both store"):
        matrix.compose_case("adamw kahan master")
