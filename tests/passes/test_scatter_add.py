"""Test which rules only scatter-add multiples of a sparse gradient to their parameter."""

import pytest

from optgen.passes.recognize_rules import is_scatter_add
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

RULE = '''
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
    spec = Spec("Made", RULE.format(signature, rule), "<made>", 1)
    (algorithm,) = read_spec(spec)
    return is_scatter_add(algorithm)


@pytest.mark.parametrize("name", SCATTER_ADDS)
def test_a_rule_that_adds_multiples_of_the_gradient_is_a_scatter_add(name: str) -> None:
    assert is_recognized(*SCATTER_ADDS[name])


@pytest.mark.parametrize("name", OTHER_RULES)
def test_a_rule_that_does_more_is_no_scatter_add(name: str) -> None:
    assert not is_recognized(*OTHER_RULES[name])
