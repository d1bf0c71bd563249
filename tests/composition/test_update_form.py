"""Test that a rule is rewritten to compute the update of its parameter."""

from __future__ import annotations

import ast

import pytest

from optgen.spec.composition.update_form import UpdateForm

CASES = {
    "a difference": ("p = p - lr * m", "u = -(lr * m)"),
    "terms in any order": ("p = a + p - b", "u = a - b"),
    "two statements": ("p = p - a\np = p - p * b", "u = -a\nu = u - (p + u) * b"),
    "a product": ("p = p * c", "u = p * c - p"),
    "a product after a difference": ("p = p - a\np = p * c", "u = -a\nu = (p + u) * c - p"),
    "a sum with itself": ("p = p + p", "u = p + p - p"),
    "a negated parameter": ("p = a - p", "u = a - p - p"),
    "a later read": ("p = p - a\nm = p * p", "u = -a\nm = (p + u) * (p + u)"),
    "a property of the parameter": ("p = p - a\nm = m / ndim(p)", "u = -a\nm = m / ndim(p)"),
    "one branch": (
        "if f:\n    p = p - a\np = p - b",
        "if f:\n    u = -a\nelse:\n    u = 0 * p\nu = u - b",
    ),
    "a statement before two branches": (
        "p = p - a\nif f:\n    m = p\nelse:\n    p = p - b",
        "u = -a\nif f:\n    m = p + u\nelse:\n    u = u - b",
    ),
    "a read in a branch": ("p = p - a\nif t > 1:\n    m = p", "u = -a\nif t > 1:\n    m = p + u"),
    "a tuple": ("p, m = p - m, p", "m_next = p\nu = -m\nm = m_next"),
    "a tuple that keeps the parameter": ("m, p = p, p", "m_next = p\nm = m_next"),
    "no assignment to the parameter": ("m = p + g", "m = p + g"),
}


@pytest.mark.parametrize("case", CASES)
def test_statements_compute_the_update(case: str) -> None:
    before, after = CASES[case]
    form = UpdateForm("p", "u", (f"m_next{n or ''}" for n in range(3)))
    block = form.block(ast.parse(before).body)
    written = "\n".join(ast.unparse(ast.fix_missing_locations(stmt)) for stmt in block)
    assert written == after
