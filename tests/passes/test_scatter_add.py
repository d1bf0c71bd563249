"""Test which rules only scatter-add multiples of a sparse gradient to their parameter."""

import pytest

from optgen.passes.scatter_add import is_scatter_add
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

RULE = '''
from optgen.spec import *

@optimizer(gradient="rows")
def Tried({}):
    """A rule."""
    {}
'''
LR = "p, g, /, *, lr=hyper(0.1)"
FLAG = f"{LR}, other=flag(False)"
COUNTED = "p, g, t, /, s=state('s', shape='scalar', init=1.0), *, lr=hyper(0.1)"
DECAYED = f"{LR}, decay=hyper(0, rows=False)"
HEAVY = "p, g, /, b=state('b', when='heavy', rows=False), *, lr=hyper(0.1), heavy=flag(False)"
KEPT = "p, g, /, m=state('m'), *, lr=hyper(0.1)"
WHOLE = "p, g, /, m=state('m', rows=False), *, lr=hyper(0.1)"

ADDING = {
    "plain": (LR, "p = p - lr * g"),
    "the parameter comes last": (LR, "p = -lr * g + p"),
    "the factor depends on the step count": (
        COUNTED,
        "s = s * 0.9\n    p = p - lr * s * g / (1 + t) - g * 2",
    ),
    "no decay": (DECAYED, "if decay:\n        g = g + decay * p\n    p = p - lr * g"),
    "no momentum": (
        HEAVY,
        "if heavy:\n        b = b + g\n        g = b\n    p = p - lr * g",
    ),
    "in both arms": (FLAG, "x = lr * g\n    if other:\n        x = -x\n    p = p - x"),
}
OTHERS = {
    "a product": (LR, "p = p - lr * g * g"),
    "a root": (LR, "p = p - lr * sqrt(g)"),
    "a sign": (LR, "p = p - lr * sign(g)"),
    "the parameter shrinks": (LR, "p = p - lr * p - lr * g"),
    "the parameter is scaled": (LR, "p = p * (1 - lr) - g"),
    "the parameter is left out": (LR, "p = lr * g"),
    "a number is added": (LR, "p = p - lr * g + 0.1"),
    "in one arm": (FLAG, "if other:\n        g = g * g\n    p = p - lr * g"),
    "a state of rows": (KEPT, "m = m + g\n    p = p - lr * g"),
    "a state of all rows": (WHOLE, "m = m + g\n    p = p - lr * g"),
}


def is_recognized(signature: str, rule: str) -> bool:
    """Tell whether a rule is recognized as a scatter-add."""
    spec = Spec("Tried", RULE.format(signature, rule), "<tried>", 1)
    (algorithm,) = read_spec(spec)
    return is_scatter_add(algorithm)


@pytest.mark.parametrize("name", ADDING)
def test_a_rule_that_adds_multiples_of_the_gradient_is_a_scatter_add(name: str) -> None:
    assert is_recognized(*ADDING[name])


@pytest.mark.parametrize("name", OTHERS)
def test_a_rule_that_does_more_is_no_scatter_add(name: str) -> None:
    assert not is_recognized(*OTHERS[name])
