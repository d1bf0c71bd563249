"""Test which rules are recognized: scatter-adds, and rules that count the steps they skip."""

from __future__ import annotations

import pytest

from optgen.passes.recognize_rules import is_scatter_add, skip_count
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

SCATTER_ADD = '''
from optgen.spec import *

@optimizer(gradient="rows")
def Made({}):
    """A rule."""
    {}
'''
PLAIN_SIGNATURE = "p, g, /, *, lr=hyper(0.1)"
WITH_FLAG = f"{PLAIN_SIGNATURE}, other=flag(False)"
WITH_SCALAR_STATE = "p, g, t, /, s=state('s', shape='scalar', init=1.0), *, lr=hyper(0.1)"
WITH_DECAY = f"{PLAIN_SIGNATURE}, decay=hyper(0, rows=False)"
WITH_MOMENTUM = (
    "p, g, /, b=state('b', when='heavy', rows=False), *, lr=hyper(0.1), heavy=flag(False)"
)
WITH_STATE_OF_ROWS = "p, g, /, m=state('m'), *, lr=hyper(0.1)"
WITH_STATE_OF_ALL_ROWS = "p, g, /, m=state('m', rows=False), *, lr=hyper(0.1)"

SCATTER_ADDS = {
    "plain": (PLAIN_SIGNATURE, "p = p - lr * g"),
    "the parameter comes last": (PLAIN_SIGNATURE, "p = -lr * g + p"),
    "the factor depends on the step count": (
        WITH_SCALAR_STATE,
        "s = s * 0.9\n    p = p - lr * s * g / (1 + t) - g * 2",
    ),
    "no decay": (WITH_DECAY, "if decay:\n        g = g + decay * p\n    p = p - lr * g"),
    "no momentum": (
        WITH_MOMENTUM,
        "if heavy:\n        b = b + g\n        g = b\n    p = p - lr * g",
    ),
    "in both arms": (WITH_FLAG, "x = lr * g\n    if other:\n        x = -x\n    p = p - x"),
}
OTHER_RULES = {
    "a product": (PLAIN_SIGNATURE, "p = p - lr * g * g"),
    "a root": (PLAIN_SIGNATURE, "p = p - lr * sqrt(g)"),
    "a sign": (PLAIN_SIGNATURE, "p = p - lr * sign(g)"),
    "the parameter shrinks": (PLAIN_SIGNATURE, "p = p - lr * p - lr * g"),
    "the parameter is scaled": (PLAIN_SIGNATURE, "p = p * (1 - lr) - g"),
    "the parameter is left out": (PLAIN_SIGNATURE, "p = lr * g"),
    "a number is added": (PLAIN_SIGNATURE, "p = p - lr * g + 0.1"),
    "in one arm": (WITH_FLAG, "if other:\n        g = g * g\n    p = p - lr * g"),
    "a state of rows": (WITH_STATE_OF_ROWS, "m = m + g\n    p = p - lr * g"),
    "a state of all rows": (WITH_STATE_OF_ALL_ROWS, "m = m + g\n    p = p - lr * g"),
}


def is_recognized(signature: str, rule: str) -> bool:
    """Tell whether a rule is recognized as a scatter-add."""
    spec = Spec("Made", SCATTER_ADD.format(signature, rule), "<made>", 1)
    (algorithm,) = read_spec(spec)
    return is_scatter_add(algorithm)


@pytest.mark.parametrize("name", SCATTER_ADDS)
def test_a_rule_that_adds_multiples_of_the_gradient_is_a_scatter_add(name: str) -> None:
    assert is_recognized(*SCATTER_ADDS[name])


@pytest.mark.parametrize("name", OTHER_RULES)
def test_a_rule_that_does_more_is_no_scatter_add(name: str) -> None:
    assert not is_recognized(*OTHER_RULES[name])


RULE = '''
from optgen.spec import *

@optimizer(gradient="dense")
def Tried(
    p, g, t, /, m=state("m"), s=state("left_out", shape="scalar"), k=state("k", shape="scalar"), *,
    lr=hyper(0.1)
):
    """A rule."""
    {}
'''
FINITE = 'finite = 0 * max_abs(g, over="all") == 0'
COUNT = "s = where(finite, s, s + 1)"
MOMENTUM = "m = where(finite, 0.9 * m + g, m)"
STEP = "p = where(finite, p - lr * m, p)"
OTHER = "k = where(finite, k, k)"
LINES = (FINITE, COUNT, MOMENTUM, STEP, OTHER)

RECOGNIZED = {
    "as composed": LINES,
    "in another order": (FINITE, OTHER, MOMENTUM, STEP, COUNT),
    "a branch": (FINITE, COUNT, MOMENTUM, OTHER, f"if lr > 1:\n        {STEP}"),
    "a copy of the gradient changes": (FINITE, "g = g * 2", COUNT, MOMENTUM, STEP, OTHER),
}
NOT_RECOGNIZED = {
    "a state changes in a skipped step": (FINITE, COUNT, "m = 0.9 * m + g", STEP, OTHER),
    "the parameter changes in a skipped step": (
        FINITE,
        COUNT,
        MOMENTUM,
        OTHER,
        STEP,
        "p = p - lr * p",
    ),
    "a skipped step gives a state another value": (
        FINITE,
        COUNT,
        "m = where(finite, g, g)",
        STEP,
        OTHER,
    ),
    "no state counts": (FINITE, "s = where(finite, s, s)", MOMENTUM, STEP, OTHER),
    "a state counts by two": (FINITE, "s = where(finite, s, s + 2)", MOMENTUM, STEP, OTHER),
    "a state counts steps that are not skipped": (
        FINITE,
        "s = where(finite, s + 1, s)",
        MOMENTUM,
        STEP,
        OTHER,
    ),
    "two states count": (*LINES[:-1], "k = where(finite, k, k + 1)"),
    "steps with large gradients are skipped": ('finite = max_abs(g, over="all") < 10', *LINES[1:]),
    "the condition tests the parameter": ('finite = 0 * max_abs(p, over="all") == 0', *LINES[1:]),
    "the condition tests the gradient of one parameter": (
        "finite = 0 * max_abs(g) == 0",
        *LINES[1:],
    ),
    "the condition tests a sum, which may overflow": (
        'finite = 0 * sum(g, over="all") == 0',
        *LINES[1:],
    ),
    "the gradient has changed": ("g = where(abs(g) < 10, g, 0)", *LINES),
    "the gradient has changed in a branch": ("if lr > 1:\n        g = 0 * m", *LINES),
    "the condition changes": (FINITE, COUNT, "finite = sum(m) > 0", *LINES[2:]),
}


def skip_count_key(lines: tuple[str, ...]) -> str:
    """Return the key of the state that counts skipped steps, or an empty string."""
    spec = Spec("Tried", RULE.format("\n    ".join(lines)), "<tried>", 1)
    (algorithm, *_) = read_spec(spec)
    return skip_count(algorithm)


@pytest.mark.parametrize("lines", RECOGNIZED.values(), ids=RECOGNIZED)
def test_a_rule_that_skips_steps_is_recognized(lines: tuple[str, ...]) -> None:
    assert skip_count_key(lines) == "left_out"


@pytest.mark.parametrize("lines", NOT_RECOGNIZED.values(), ids=NOT_RECOGNIZED)
def test_any_other_rule_is_not_recognized(lines: tuple[str, ...]) -> None:
    assert not skip_count_key(lines)
