"""Test which rules are recognized as rules that skip a step if its gradient is not finite."""

import pytest

from optgen.passes.recognize_rules import skip_count
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

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
