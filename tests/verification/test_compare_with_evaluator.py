"""Test the comparison of a spec file with the evaluator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from spec_texts import DECORATOR, spec

from optgen import jit
from optgen.verification import compare_with_evaluator as comparison
from optgen.verification.compare_with_evaluator import CheckedRule, NotComparedError
from optgen.verification.evidence import Row

MATRICES = 'require(ndim(p) == 2, "matrices only, not {shape}")'
MOMENTUM = 'b=state("b")'


def write(folder: Path, text: str) -> Path:
    """Write a spec file."""
    path = folder / "mine.py"
    path.write_text(text)
    return path


def rows_of(path: Path) -> list[Row]:
    """Return the rows of a spec file."""
    return [row for each in CheckedRule.read(path).comparisons() for row in each.rows()]


def test_settings_change_flags_choices_and_zeros(tmp_path: Path) -> None:
    hypers = (
        "lr=hyper(0.1), decay=hyper(0.0, ge=0, lt=0.05), l1=hyper(0.0, ge=0), twice=flag(False)"
    )
    text = spec("if twice:\n        g = 2 * g", "p = p - lr * (g + decay * p + l1)", hypers=hypers)

    rule = CheckedRule.read(write(tmp_path, text))

    labels = [setting.label for setting in comparison.settings(rule.algorithm)]
    assert labels == ["defaults", "l1=0.1", "twice=True"]
    assert [str(each) for each in rule.comparisons()][-1] == "Made (float32, twice=True)"


def test_orthogonalize_is_compared_in_float64(tmp_path: Path) -> None:
    text = spec(
        MATRICES,
        "b = 0.9 * b + g",
        "p = p - lr * orthogonalize(b, ns, 5, 1e-7)",
        states=MOMENTUM,
        hypers="lr=hyper(0.1), ns=hyper((3.4445, -4.775, 2.0315))",
    )
    rule = CheckedRule.read(write(tmp_path, text))

    assert all(len(shape) == 2 for shape in rule.shapes)
    in_float64, in_float32 = (row for each in rule.comparisons() for row in each.rows())
    assert in_float64.passed
    assert in_float32.passed
    assert max(in_float64.errors.values()) < 1e-13


def test_a_wrong_lowering_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = jit.load(write(tmp_path, spec("p = p - 1.01 * lr * g")))
    path = write(tmp_path, spec("p = p - lr * g"))
    monkeypatch.setattr(jit, "load", lambda spec: other)

    assert [row.passed for row in rows_of(path)] == [False, False]


def test_arms_for_16_bits_are_compared_in_float64(
    tmp_path: Path,
) -> None:
    body = (
        "if n:",
        "    b = b + {} * g",
        "    p = rounded(p - lr * b)",
        "else:",
        "    p = p - lr * g",
    )
    right, wrong = (
        spec(
            *(line.format(factor) for line in body),
            states='b=state("b", when="n")',
            hypers='lr=hyper(0.1), n=fixed("narrow")',
        )
        for factor in ("1", "1.0001")
    )
    other = jit.load(write(tmp_path, wrong))
    rule = CheckedRule.read(write(tmp_path, right))
    comparisons = [each for each in rule.comparisons() if each.dtype == torch.float64]
    assert [str(each) for each in comparisons] == [
        "Made (float64, defaults)",
        "Made (float64, as for 16 bits)",
    ]
    assert [row.passed for each in comparisons for row in each.rows()] == [True, True]

    with_wrong_arm = replace(rule, cls=other)
    rows = [row for each in comparisons for row in replace(each, rule=with_wrong_arm).rows()]
    assert [row.passed for row in rows] == [True, False]


def test_a_derived_rule_is_compared_with_the_rule_of_its_base(tmp_path: Path) -> None:
    decorator = DECORATOR.replace(")", ', base="Adam")')
    text = spec("", decorator=decorator, inputs="p, g, t", hypers="weight_decay=hyper(0.01, ge=0)")

    assert {row.passed for row in rows_of(write(tmp_path, text))} == {True}


def test_extra_inputs_are_handed_to_both_sides(tmp_path: Path) -> None:
    text = spec("p = p - lr * g * h / t", inputs='p, g, t, h=given("hessian")')

    assert {row.passed for row in rows_of(write(tmp_path, text))} == {True}


def test_a_rule_that_grows_is_compared_while_its_numbers_are_moderate(tmp_path: Path) -> None:
    (first, _) = rows_of(write(tmp_path, spec("p = 10 * p - lr * g")))
    assert first.passed
    assert 1 < first.steps < 10
    assert "the rule makes numbers that are too large" in " ".join(comparison.remarks(first))

    (first, _) = rows_of(write(tmp_path, spec("p = p / (t - 1) - lr * g")))
    assert not first.passed
    assert "the first step makes numbers that are infinite" in " ".join(comparison.remarks(first))


def test_a_state_of_16_bits_widens_the_bound(tmp_path: Path) -> None:
    text = spec("b = 0.9 * b + g", "p = p - lr * b", states='b=state("b", dtype="bfloat16")')
    rows = rows_of(write(tmp_path, text))

    assert all(row.passed and 1e-3 < row.bound < 10 for row in rows)


BASIS_OF_SINGULAR_MATRIX = (
    MATRICES,
    "if t == 1:",
    "    b = eigenvectors(transpose(g) @ g / rows(p))",
    "else:",
    "    x = g @ b",
    "    p = p - {lr} * x / (abs(x) + 1e-8) @ transpose(b)",
)
"""As in SOAP: Adam's step in a basis. With fewer rows than columns, the basis is arbitrary."""


def test_shapes_that_magnify_rounding_do_not_hide_a_mistake_in_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = 'b=state("b", shape=("cols", "cols"))'
    right, wrong = (
        spec(*(line.format(lr=lr, shape="") for line in BASIS_OF_SINGULAR_MATRIX), states=states)
        for lr in ("lr", "1.0001 * lr")
    )
    path = write(tmp_path, right)
    square, wide, *_ = rows_of(path)
    assert square.reference.endswith("(float64, defaults, without 3 x 5)")
    assert wide.reference.endswith("(float64, defaults, 3 x 5)")
    assert max(square.errors.values()) <= square.bound < 1e-8
    assert wide.bound > 1e-3

    other = jit.load(write(tmp_path, wrong))
    path = write(tmp_path, right)
    monkeypatch.setattr(jit, "load", lambda spec: other)
    square, *_ = rows_of(path)
    assert not square.passed


def test_rounding_of_a_singular_product_is_no_mistake(tmp_path: Path) -> None:
    """A product of 37 x 37 has 18 eigenvalues of 0, which are not 0 after rounding to float32."""
    body = (MATRICES, "p = p - lr * inverse_root(g @ transpose(g), t, 1e-3) @ g")
    assert {row.passed for row in rows_of(write(tmp_path, spec(*body)))} == {True}


def test_what_is_not_compared_is_named(tmp_path: Path) -> None:
    sparse = DECORATOR.replace(")", ', gradient="sparse_only")')
    for text, message in (
        (spec(decorator=sparse), "dense gradients are compared, and this class takes sparse ones"),
        (
            spec(MATRICES.replace("2", "7"), "p = p - lr * g"),
            r"matrices only, not torch.Size\(\[4, 4\]\)",
        ),
    ):
        with pytest.raises(NotComparedError, match=message):
            CheckedRule.read(write(tmp_path, text))


def test_the_default_dtype_stays(tmp_path: Path) -> None:
    rows_of(write(tmp_path, spec()))
    assert torch.get_default_dtype() is torch.float32
