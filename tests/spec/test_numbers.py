"""Test numbers in a spec: the error for one that float64 cannot hold points at the number."""

from __future__ import annotations

import time

import pytest
from spec_texts import LR, read, spec

from optgen.ir.nodes import Const, expressions, walk
from optgen.spec.errors import SpecError

BAD_NUMBERS = {
    "an infinite default": spec(hypers="lr=hyper(1e999)"),
    "an infinite bound": spec(hypers="lr=hyper(0.1, ge=-1e999)"),
    "a bound that is too large": spec(hypers="lr=hyper(0.1, le=10**400)"),
    "a digit too many for Python": spec(hypers=f"lr=hyper(0.1, le={'9' * 4000})"),
    "digits that Python does not print": spec(hypers=f"lr=hyper(0x{'f' * 5000})"),
    "an infinite initial value": spec(
        "m = m + g", "p = p - m", states='m=state("a", init=1e999)', hypers=""
    ),
    "infinite limits": spec("p = p - lr * clamp(g, -1e999, 1e999)"),
    "an infinite argument": spec("p = p - minimum(1e999, lr) * g"),
    "a large factor": spec(f"p = p - lr * g * {'9' * 4000}"),
    "a large factor in base 16": spec(f"p = p - lr * g * 0x{'f' * 5000}"),
    "a large index": spec(f"p = p - lr[0x{'f' * 5000}] * g", hypers="lr=hyper((1, 2))"),
    "a division by zero": spec("p = p - lr * g * (1 / 0)"),
    "a remainder by zero": spec("p = p - lr * g * (1 % 0)"),
    "a power of powers": spec("p = p - lr * g * ((10**1000)**1000)**1000"),
    "a power of powers in a default": spec(hypers="lr=hyper(((10**1000)**1000)**1000)"),
    "a power of powers in a constant": spec(before="N = ((10**1000)**1000)**1000"),
    "a long string": spec(before='A = "a" * 10**10'),
    "an overflow": spec("p = p - lr * g * (1e300 * 1e300)"),
    "an overflow through a helper": spec(
        "p = p - lr * g * f(1e300)", before="def f(x):\n    return x * x"
    ),
    "no real number": spec("p = p - lr * g * (-1)**0.5"),
    "a root of a negative number": spec("p = p - lr * g * sqrt(-1)"),
    "a logarithm of zero": spec("p = p - lr * g * log(0)"),
    "a large exponential": spec("p = p - lr * g * exp(1000)"),
    "a division by zero in a requirement": spec('require(ndim(p) == 0/0, "no")', "p = p - lr * g"),
    "a large power of a default": spec(
        'require(n**10**9 > 0, "no")', "p = p - n * g", hypers="n=hyper(3)"
    ),
}


@pytest.mark.parametrize("case", BAD_NUMBERS)
def test_a_number_that_float64_cannot_hold_is_refused(case: str) -> None:
    start = time.perf_counter()
    with pytest.raises(SpecError) as raised:
        read(BAD_NUMBERS[case])

    assert time.perf_counter() - start < 5
    assert raised.value.place.line > 2
    assert "^" in str(raised.value)
    assert "hint: " in str(raised.value)
    assert len(str(raised.value)) < 2000


def test_a_requirement_that_divides_by_zero_for_some_shapes_is_accepted() -> None:
    algorithm = read(spec('require(1 / (ndim(p) - 1) > 0, "no")', "p = p - lr * g"))

    assert algorithm.requires


def test_large_integers_become_floats() -> None:
    """C++ and torch have no integers of this size."""
    algorithm = read(spec("p = p - lr * g * 10**20 / 12345678901234567890123", hypers=LR))

    values = [
        e.value for expr in expressions(algorithm.rule) for e in walk(expr) if isinstance(e, Const)
    ]
    assert values == [10, 20, 12345678901234567890123.0]
    assert [type(value) for value in values] == [int, int, float]


def test_a_large_whole_default_becomes_a_float() -> None:
    (lr,) = read(spec(hypers="lr=hyper(10**20, le=2**200)")).hypers

    assert type(lr.default) is float
    assert lr.default == 1e20
    assert lr.bounds.le == 2.0**200
