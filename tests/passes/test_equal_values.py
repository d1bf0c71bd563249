"""Test that values with equal definitions are computed once, whatever their names are."""

from __future__ import annotations

from collections import Counter

from spec_texts import read, spec

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Assign, Call, expressions, walk
from optgen.passes.plan_rule import plan

HELPERS = """
def vectors(x):
    y = x + 0.5 * identity(x)
    return eigenvectors(y)


def values(x):
    y = x + 0.5 * identity(x)
    return eigenvalues(y)
"""
MATRIX = 'require(ndim(p) >= 2, "{shape}")'


def words(algorithm: Algorithm) -> Counter[str]:
    """Return how often each op stands in a rule's plan on whole matrices."""
    (sweep,) = plan(algorithm, {"factored": True}).sweeps
    nodes = (node for expr in expressions(sweep.body) for node in walk(expr))
    return Counter(node.op for node in nodes if isinstance(node, Call))


def test_helpers_share_what_they_compute() -> None:
    body = (
        "L = g @ transpose(g)",
        "V = vectors(L)",
        "p = p - lr * V @ (transpose(V) @ g / values(L)) / (1 + trace(L) + trace(L))",
    )
    found = words(read(spec(MATRIX, *body, before=HELPERS)))
    assert [found[op] for op in ("eigenvectors", "eigenvalues", "identity", "trace")] == [1] * 4


def test_a_branch_shares_no_value_with_the_other_arm_or_with_what_follows() -> None:
    body = (
        "L = g @ transpose(g)",
        "if t > 2:",
        "    u = vectors(L) @ g",
        "else:",
        "    u = vectors(L) @ p",
        "p = p - lr * vectors(L) @ u",
    )
    assert words(read(spec(MATRIX, *body, before=HELPERS)))["eigenvectors"] == 3


def test_an_answer_that_only_a_branch_needs_is_not_computed_before_it() -> None:
    body = (
        "L = g @ transpose(g)",
        "w = eigenvalues(L)",
        "if t % 10 == 0:",
        "    g = eigenvectors(L) @ g",
        "p = p - lr * g / (1 + w)",
    )
    algorithm = read(spec(MATRIX, *body))
    (sweep,) = plan(algorithm, {"factored": True}).sweeps
    direct = expressions(tuple(stmt for stmt in sweep.body if isinstance(stmt, Assign)))
    before_branch = [node for expr in direct for node in walk(expr)]
    assert not any(isinstance(node, Call) and node.op == "eigenvectors" for node in before_branch)
    assert words(algorithm)["eigenvectors"] == 1
