"""Test the reader's errors on roundings to the parameter's dtype, and on random numbers."""

from __future__ import annotations

import pytest
from conftest import Golden
from spec_texts import UPDATE, read, spec

from optgen.ir.execution import widens
from optgen.spec.errors import SpecError

MATRIX = 'require(ndim(p) == 2, "{shape}")'
FUNCTION = '''from optgen.spec import *

@elementwise
def halve(a, b, /, *, w=hyper(0.5)):
    """Made up."""
    a = {value}
'''

CASES = {
    "a rounding of a number": spec("p = p - rounded(lr) * g"),
    "a rounding of rows": spec(MATRIX, "p = p - lr * rounded_down(row_mean(g)) * g"),
    "a rounding of two values": spec("p = rounded(p - lr * g, p)"),
    "a rounding of an answer": spec("p = p - lr * rounded_up(g > 0)"),
    "a rounding in a requirement": spec('require(rounded(lr) == lr, "no")', UPDATE),
    "a rounding in a function": FUNCTION.replace("{value}", "rounded(a + w * b)"),
    "a rounding that is not called": spec("p = p - lr * g * rounded"),
    "random without arguments": spec("p = p - lr * g * random()"),
    "random of a tensor": spec("p = p - lr * random(g, 1)"),
    "random of a sum": spec("p = p - lr * g * random(1, sum(g))"),
    "random without a step count": spec("p = p - lr * g * random(1, 2)", inputs="p, g"),
    "random in a function": FUNCTION.replace("{value}", "random(1, w) * a + b"),
    "random for sparse gradients": spec(
        "p = p - lr * g * random(1, 2)", decorator='@optimizer(gradient="rows")'
    ),
    "a tensor that begins as the index": spec(
        "p = p - lr * k * g", states='k=state("stream", init="index")'
    ),
    "another random word": spec("p = p - lr * randn(g)"),
}


@pytest.mark.parametrize("case", CASES)
def test_error(case: str, golden: Golden) -> None:
    with pytest.raises(SpecError) as caught:
        read(CASES[case])

    golden.check(str(caught.value))


def test_a_variable_may_have_the_name_of_a_word_that_is_not_called() -> None:
    rule = read(spec("random = lr * g", "rounded = random + p", "p = rounded - 2 * random"))
    assert not rule.has_random_ops
    assert not widens(rule)
