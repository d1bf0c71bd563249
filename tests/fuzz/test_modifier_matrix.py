"""Test that the matrix of modifiers and rules is complete; `make compositions` runs it."""

from __future__ import annotations

import pytest

from fuzz import compare_stages_by_hand, modifier_matrix
from optgen.compositions import list_modifiers
from optgen.spec.composition.check_parts import CompositionError
from optgen.spec.read_spec import read_spec

NUM_MODIFIERS = len(list_modifiers())


def test_every_modifier_is_combined_with_over_twenty_rules() -> None:
    cases = [case.split() for case in modifier_matrix.cases("rules")]
    assert {name for _, name in cases} == {*list_modifiers()}
    assert len({rule for rule, _ in cases}) * NUM_MODIFIERS == len(cases) > 20 * NUM_MODIFIERS


@pytest.mark.parametrize("rule", [*modifier_matrix.TORCH_RULES, *modifier_matrix.OTHER_RULES])
def test_every_rule_but_sparse_adam_takes_a_modifier(rule: str) -> None:
    if rule == "sparse_adam":
        with pytest.raises(CompositionError, match="sparse"):
            modifier_matrix.compose_case(f"{rule} ema")
        return
    text, settings = modifier_matrix.compose_case(f"{rule} ema")

    assert "ema" in text
    assert len(settings) == 2


def test_the_matrix_names_all_pairs() -> None:
    """Two modifiers of one stage come in both orders."""
    pairs = [case.split()[1:] for case in modifier_matrix.cases("pairs")]
    assert {frozenset(pair) for pair in pairs} == {
        frozenset((a, b)) for a in list_modifiers() for b in list_modifiers() if a != b
    }
    assert ["cautious", "grams"] in pairs
    assert ["grams", "cautious"] in pairs
    assert ["ema", "cautious"] not in pairs
    assert {*compare_stages_by_hand.pairs()} == {(first, second) for first, second in pairs}


@pytest.mark.parametrize("case", ["adamw clip_norm adaptive_clip", "#1 cautious"])
def test_a_case_always_composes_the_same_text(case: str) -> None:
    text, settings = modifier_matrix.compose_case(case)
    assert (text, settings) == modifier_matrix.compose_case(case)
    (algorithm,) = read_spec(modifier_matrix.random_spec(text))
    assert algorithm.name == "Random"
    assert settings[0].dtype == "float64"
    if "adaptive" in case:  # `adaptive_clip` refuses three axes
        assert all(len(shape) < 3 for s in settings for shape in s.shapes)


def test_incompatible_modifiers_are_refused() -> None:
    with pytest.raises(CompositionError, match="both store"):
        modifier_matrix.compose_case("adamw kahan master")
