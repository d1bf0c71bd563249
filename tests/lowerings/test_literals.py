"""Test the literals of numbers, flags and tuples in generated Python."""

from __future__ import annotations

import pytest

from optgen.lowerings.python.literals import literal


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-3, "1e-3"),
        (1e-8, "1e-8"),
        (0.01, "1e-2"),
        (-0.05, "-5e-2"),
        (1e6, "1e6"),
        (0.9, "0.9"),
        (0.999, "0.999"),
        (0.0125, "0.0125"),
        (0.0, "0.0"),
        (1.0, "1.0"),
        (100.0, "100.0"),
        (3.4445, "3.4445"),
        (0, "0"),
        (True, "True"),
        (None, "None"),
        ((0.9,), "(0.9,)"),
        ((0.9, None, "x"), "(0.9, None, 'x')"),
    ],
)
def test_a_literal_is_short_and_exact(value: object, text: str) -> None:
    """The literal is as short as people write numbers, and has the same value."""
    assert literal(value) == text
    assert eval(text) == value
