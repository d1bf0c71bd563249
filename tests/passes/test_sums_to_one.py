"""Test which pairs of coefficients add up to 1: as the catalogue writes them, and hostile ones."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from spec_texts import read, spec

from optgen.ir.nodes import Assign, Call, Const, Expr, Ref
from optgen.passes.sums_to_one import sums_to_one

ROOT = Path(__file__).parent.parent.parent

SUM_TO_ONE = {
    "as in a mean": ("beta", "1 - beta"),
    "in the other order": ("1 - t**-0.8", "t**-0.8"),
    "with a quotient": (
        "(beta**t - beta) / (beta**t - 1)",
        "1 - (beta**t - beta) / (beta**t - 1)",
    ),
    "numbers that are not exact in binary": ("0.9", "0.1"),
    "one and nothing": ("1", "0"),
    "written out": ("1 - lr * c", "lr * c"),
    "multiplied out": ("(1 - lr) * (1 - c)", "lr + c - lr * c"),
    "with a square": ("beta**2", "(1 - beta) * (1 + beta)"),
    "with a negative power": ("1 - t**-2", "1 / (t * t)"),
    "two quotients": ("t / (t + c)", "c / (c + t)"),
    "the same call": ("1 - 2 * exp(-c)", "exp(-c) + exp(-c)"),
    "a rounded number": ("0.7 * c", "1 - c * 7 / 10"),
}
DIFFERENT = {
    "another name": ("beta", "1 - c"),
    "a negative step": ("1", "-lr"),
    "almost": ("beta", "1.000001 - beta"),
    "close to one": ("0.999999", "0.0000011"),
    "another call": ("exp(-c)", "1 - exp(c)"),
    "twice one": ("1", "1"),
    "a divisor of zero": ("t / (c - c)", "(c - c - t) / (c - c)"),
    "a large power": ("(1 - beta)**9", "1 - (1 - beta)**8 * (1 - beta)"),
}


def coefficients(a: str, b: str) -> list[Expr]:
    """Return two coefficients as the language reads them."""
    hypers = "lr=hyper(0.1, ge=0), beta=hyper(0.9, ge=0, lt=1), c=hyper(0.5)"
    rule = read(
        spec(f"x = {a}", f"y = {b}", "p = p - (lr + beta + c) * (x * g + y * g)", hypers=hypers)
    ).rule
    return [s.value for s in rule if isinstance(s, Assign) and s.target.name in ("x", "y")]


@pytest.mark.parametrize("case", SUM_TO_ONE)
def test_coefficients_that_add_up_to_one(case: str) -> None:
    a, b = coefficients(*SUM_TO_ONE[case])
    assert sums_to_one(a, b)
    assert sums_to_one(b, a)


@pytest.mark.parametrize("case", DIFFERENT)
def test_coefficients_that_do_not(case: str) -> None:
    a, b = coefficients(*DIFFERENT[case])
    assert not sums_to_one(a, b)
    assert not sums_to_one(b, a)


def power(base: Expr, exponent: int, times: int) -> Expr:
    for _ in range(times):
        base = Call("**", (base, Const(exponent)))
    return base


def product_of_sums(factors: int) -> Expr:
    product: Expr = Const(1)
    for i in range(factors):
        product = Call("*", (product, Call("+", (Ref(f"a{i}"), Ref(f"b{i}")))))
    return product


HOSTILE = {
    "a tower of powers": power(Call("+", (Ref("a"), Ref("b"))), 8, 20),
    "a tower of powers of a name": power(Ref("a"), 8, 20),
    "a tower of powers of a number": power(Const(3), 8, 20),
    "a number of 300 digits": power(Const(7**350), 8, 3),
    "a product of sums": product_of_sums(40),
    "the same in a divisor": Call("/", (Ref("a"), product_of_sums(40))),
    "many names": product_of_sums(200),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_proof_that_would_be_long_is_given_up(case: str) -> None:
    """Both coefficients add up to 1, so that no point tells them apart."""
    a = HOSTILE[case]
    b = Call("+", (Const(1), Call("neg", (a,))))  # unlike 1 - a, it needs a proof
    before = time.process_time()
    sums_to_one(a, b)
    assert time.process_time() - before < 10


def test_sympy_is_imported_for_a_proof_only() -> None:
    code = (
        "import sys; from optgen.ir.nodes import Call, Const, Ref; "
        "from optgen.passes.sums_to_one import sums_to_one; beta = Ref('beta'); "
        "assert sums_to_one(beta, Call('-', (Const(1), beta))); "
        "assert not sums_to_one(Const(1), Call('neg', (beta,))); "
        "print('sympy' in sys.modules); "
        "assert sums_to_one(Call('neg', (beta,)), Call('+', (Const(1), beta))); "
        "print('sympy' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "True"]
