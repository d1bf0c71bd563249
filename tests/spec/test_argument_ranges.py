"""Test that numbers in a rule are refused where the op that takes them has no use for them."""

from __future__ import annotations

import pytest
from spec_texts import read, spec

from optgen.spec.errors import SpecError

REFUSED = {
    "a quotient by 0": ("p = p - lr * g / 0", "a quotient by 0"),
    "a quotient by a constant 0": ("p = p - lr * g / (2 - 2)", "a quotient by 0"),
    "a remainder by 0": ("p = p - lr * (g % 0.0)", "a remainder by 0"),
    "crossed bounds": ("p = p - lr * clamp(g, 1, -1)", "`clamp` between 1 and -1"),
}
ACCEPTED = {
    "a divisor that is not 0": "p = p - lr * g / 0.5",
    "equal bounds": "p = p - lr * clamp(g, 1, 1)",
    "bounds that depend on a hyperparameter": "p = p - lr * clamp(g, lr, -lr)",
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_number_out_of_range_is_refused(case: str) -> None:
    line, message = REFUSED[case]
    with pytest.raises(SpecError) as raised:
        read(spec(line))

    assert message in str(raised.value)
    assert "^" in str(raised.value)
    assert raised.value.hint


@pytest.mark.parametrize("case", ACCEPTED)
def test_a_number_in_range_is_accepted(case: str) -> None:
    read(spec(ACCEPTED[case]))
