"""Test that all reductions become sums and maxima, and rules keep their meaning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from invariants import verify_algorithm
from planning import WITH_PHASES
from spec_texts import read, spec

from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import evaluate
from optgen.ir.nodes import Call, expressions, walk
from optgen.ir.ops import REDUCTIONS
from optgen.ir.print_ir import to_text
from optgen.passes.prepare_rule import expand_reductions
from optgen.passes.ssa import to_ssa

ROWS = 'require(ndim(p) > 1, "no rows in {shape}")'
SUMS_AND_MAXIMA = {f"{line}{word}" for line in ("", "row_", "col_") for word in ("sum", "max_abs")}


def ops_of(algorithm: Algorithm) -> set[str]:
    """Return the names of the ops of a rule."""
    nodes = (node for expr in expressions(algorithm.rule) for node in walk(expr))
    return {node.op for node in nodes if isinstance(node, Call)}


def assert_expansion_agrees(algorithm: Algorithm, shape: tuple[int, ...]) -> None:
    """Compare three steps of a rule with three of the same rule with expanded reductions."""
    expanded = expand_reductions(algorithm)
    generator = torch.Generator().manual_seed(3)
    hypers: dict[str, Any] = {h.name: h.default for h in algorithm.hypers}
    p = torch.randn(shape, generator=generator, dtype=torch.float64)
    q, p_state, q_state = p, {}, {}
    for _ in range(3):
        g = torch.randn(shape, generator=generator, dtype=torch.float64)
        p, p_state = evaluate(algorithm, hypers, p, g, p_state, torch.float64)
        q, q_state = evaluate(expanded, hypers, q, g, q_state, torch.float64)
    torch.testing.assert_close(p, q, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(p_state, q_state, rtol=1e-13, atol=1e-15)


def reduces_rows_or_columns_twice(word: str, operand: str) -> bool:
    return any(word.startswith(line) and operand.startswith(line) for line in ("row_", "col_"))


OPERANDS = ("g", "g * row_sum(p)", "row_mean(g)", "col_mean(g)")


@pytest.mark.parametrize(
    ("word", "operand"),
    [
        (word, operand)
        for word in REDUCTIONS
        for operand in OPERANDS
        if not reduces_rows_or_columns_twice(word, operand)
    ],
)
def test_a_reduction_becomes_sums_and_maxima(word: str, operand: str) -> None:
    algorithm = read(spec(ROWS, f"p = p - lr * g * {word}({operand})"))

    assert ops_of(expand_reductions(algorithm)) & set(REDUCTIONS) <= SUMS_AND_MAXIMA
    assert_expansion_agrees(algorithm, (2, 4, 3))


def test_a_mean_of_one_number_per_matrix_keeps_its_meaning() -> None:
    algorithm = read(spec(ROWS, "x = col_mean(row_mean(g))", "p = p - lr * g * mean(x) * rms(x)"))

    assert_expansion_agrees(algorithm, (2, 4, 3))


def test_reductions_inside_conditions_and_branches_keep_their_meaning() -> None:
    body = ("if t > 1:", "    p = p - where(mean(g) > 0, lr * g, p * rms(p))", "p = p - lr * g")

    assert_expansion_agrees(read(spec(*body)), (5,))


@pytest.mark.parametrize("name", WITH_PHASES)
def test_rules_keep_their_meaning(name: str) -> None:
    expanded = expand_reductions(to_ssa(WITH_PHASES[name]))

    verify_algorithm(expanded)
    assert ops_of(expanded) & set(REDUCTIONS) <= SUMS_AND_MAXIMA
    assert_expansion_agrees(WITH_PHASES[name], (3, 4))


def test_means_become_sums_over_counts() -> None:
    body = ("x = rms(g)", "y = row_mean(p)", "p = p - lr * x * y * g")
    text = to_text(expand_reductions(read(spec(ROWS, *body))))

    assert text.splitlines()[1:3] == [
        "  x = sqrt(sum(g ** 2) / numel(p))",
        "  y = row_sum(p) / cols(p)",
    ]
