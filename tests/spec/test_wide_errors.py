"""Test the reader's errors on reductions over several parameters, and on states of a group."""

from __future__ import annotations

import pytest
from conftest import Golden
from spec_texts import UPDATE, read, spec

from optgen.spec.errors import SpecError

GROUP = 'd=state("d", shape="group", init=1.0)'
ALL = 'd=state("d", shape="all", init=1.0)'
MATRIX = 'require(ndim(p) == 2, "{shape}")'
FUNCTION = '''from optgen.spec import *

@elementwise
def halve(a, b, /, *, w=hyper(0.5)):
    """Made up."""
    a = a - w * b * norm(b, over="all")
'''

PROGRAMS = '''
@Made.eval
def to_eval(p, z, /):
    """Made up."""
    p = p + z

@Made.train
def to_train(p, z, /):
    """Made up."""
    p = p - z
'''

CASES = {
    "over an unknown scope": spec('p = p - lr * g / norm(g, over="rank")'),
    "over a name": spec("p = p - lr * g / norm(g, over=lr)"),
    "over without a value": spec('p = p - lr * g / norm(over="all")'),
    "over and another keyword": spec('p = p - lr * g / norm(g, over="all", p=1)'),
    "two values": spec('p = p - lr * g / norm(g, p, over="all")'),
    "a word of rows": spec(MATRIX, 'p = p - lr * g / row_norm(g, over="all")'),
    "a function of elements": spec('p = p - lr * sqrt(g, over="all")'),
    "a number": spec('p = p - lr * g * sum(lr, over="group")'),
    "rows": spec(MATRIX, 'p = p - lr * g * sum(row_mean(g), over="group")'),
    "a matrix of a parameter that may be a vector": spec('p = p - lr * g / norm(g, over="matrix")'),
    "a number for a matrix": spec(MATRIX, 'p = p - lr * g * sum(lr, over="matrix")'),
    "a number per matrix for a matrix": spec(
        MATRIX, 'p = p - lr * g * rms(row_mean(col_mean(g)), over="matrix")'
    ),
    "a word of rows for a matrix": spec(MATRIX, 'p = p - lr * g / row_norm(g, over="matrix")'),
    "a matrix for sparse gradients": spec(
        MATRIX,
        'p = p - lr * g / norm(g, over="matrix")',
        decorator='@optimizer(gradient="rows")',
    ),
    "all under a flag": spec(
        "if nesterov:",
        '    g = g / norm(g, over="all")',
        UPDATE,
        hypers="lr=hyper(0.1), nesterov=flag(False)",
    ),
    "a group under a shape": spec("if factored(p):", '    g = g / norm(g, over="group")', UPDATE),
    "a group under the step count": spec("if t > 1:", '    g = g / norm(g, over="group")', UPDATE),
    "a group under an else of the step count": spec(
        "if t > 1:", "    g = 2 * g", "else:", '    g = g / norm(g, over="group")', UPDATE
    ),
    "a group under a number that follows from a shape": spec(
        "x = where(factored(p), 1, 2)", "if x > 1:", '    g = g / norm(g, over="group")', UPDATE
    ),
    "a group under a number that follows from the step count": spec(
        "x = 1",
        "if t > 1:",
        "    x = 2",
        "if x > 1:",
        '    g = g / norm(g, over="group")',
        UPDATE,
    ),
    "a hyperparameter named as a reduction over a group": spec(
        'p = p - lr * group_sum * g / norm(g, over="group")',
        hypers="lr=hyper(0.1), group_sum=hyper(1.0)",
    ),
    "fresh of a group's state": spec("if fresh(d):", "    d = 2 * d", UPDATE, states=GROUP),
    "sparse gradients beside a group's state": spec(
        "d = 2 * d", UPDATE, states=GROUP, decorator='@optimizer(gradient="rows")'
    ),
    "as a condition": spec('if norm(g, over="all") > 1:', "    g = g / 2", UPDATE),
    "a group's state as a condition": spec("if d > 1:", "    d = d / 2", UPDATE, states=GROUP),
    "in a function": FUNCTION,
    "for sparse gradients": spec(
        'p = p - lr * g / norm(g, over="all")', decorator='@optimizer(gradient="rows")'
    ),
    "a group's state that reads a sum over one parameter": spec(
        "d = d + norm(g)", UPDATE, states=GROUP
    ),
    "a group's state that reads the step count": spec("d = d * t", UPDATE, states=GROUP),
    "a group's state under the step count": spec(
        "if t > 1:", "    d = 2 * d", UPDATE, states=GROUP
    ),
    "a group's state that reads a number of one parameter": spec(
        "x = numel(p) * lr", "d = d * x", UPDATE, states=GROUP
    ),
    "a group's state that reads a number assigned in a branch": spec(
        "x = lr", "if t > 1:", "    x = 2 * x", "d = d * x", UPDATE, states=GROUP
    ),
    "a group's state that begins as the parameter": spec(
        "d = 2 * d", "p = p - d * g", states='d=state("d", shape="group", init="p")'
    ),
    "a group's state that begins as None": spec(
        "d = 2 * d",
        UPDATE,
        states='d=state("d", shape="group", init="d0")',
        hypers="lr=hyper(0.1, ge=0), d0=hyper(None, optional=True)",
    ),
    "a group's state that the constructor makes": spec(
        "d = 2 * d", "p = p - lr * d * g", states='d=state("d", shape="group", eager=True)'
    ),
    "a group's state with a condition": spec(
        "if nesterov:",
        "    d = 2 * d",
        "    p = p - d * g",
        states='d=state("d", shape="group", when="nesterov")',
        hypers="lr=hyper(0.1), nesterov=flag(False)",
    ),
    "a group's state named as a hyperparameter": spec(
        "d = 2 * d", "p = p - lr * d * g", states='d=state("lr", shape="group")'
    ),
    **{
        f"a group's state named {key}": spec(
            "d = 2 * d", "p = p - lr * d * g", states=f'd=state("{key}", shape="group")'
        )
        for key in ("params", "param_names", "initial_lr", "view")
    },
    "a group's state named as the mode": spec(
        "d = 2 * d",
        "z = g",
        "p = p - lr * d * g",
        states='z=state("z"), d=state("train_mode", shape="group")',
    )
    + PROGRAMS,
    "a tensor assigned to a group's state": spec("d = g", UPDATE, states=GROUP),
    "a state of all that reads a sum over a group": spec(
        'd = d + norm(g, over="group")', UPDATE, states=ALL
    ),
    "a state of all that reads a value of one group": spec("d = d * lr", UPDATE, states=ALL),
    "a state of all that reads a value that may be 0": spec(
        "d = d * lr", UPDATE, states=ALL, hypers='lr=hyper(0.1, groups="equal or 0")'
    ),
    "a state of all that reads a state of the group": spec(
        "k = k + 1", "d = d + k", UPDATE, states=f'k=state("k", shape="group"), {ALL}'
    ),
    "a state of all that reads one parameter": spec("d = d + norm(g)", UPDATE, states=ALL),
    "a state of all under a flag of the group": spec(
        "if nesterov:",
        "    d = 2 * d",
        UPDATE,
        states=ALL,
        hypers="lr=hyper(0.1), nesterov=flag(False)",
    ),
    "a state of all that reads a number assigned under a flag of the group": spec(
        "x = 1",
        "if nesterov:",
        "    x = 2",
        "d = d * x",
        UPDATE,
        states=ALL,
        hypers="lr=hyper(0.1), nesterov=flag(False)",
    ),
    "a state of all that begins as a value of one group": spec(
        "d = 2 * d", UPDATE, states='d=state("d", shape="all", init="lr")'
    ),
    "a state of all that begins as the parameter": spec(
        "d = 2 * d", UPDATE, states='d=state("d", shape="all", init="p")'
    ),
    "fresh of a state of all": spec("if fresh(d):", "    d = 2 * d", UPDATE, states=ALL),
    "a state of all as a condition": spec("if d > 1:", "    d = d / 2", UPDATE, states=ALL),
    "a flag that is 0 in some groups": spec(
        UPDATE, hypers='lr=hyper(0.1), nesterov=flag(False, groups="equal or 0")'
    ),
    "a tuple that is 0 in some groups": spec(
        "p = p - b[0] * g", hypers='b=hyper((0.1, 0.2), groups="equal or 0")'
    ),
    "groups of a function": FUNCTION.replace("hyper(0.5)", 'hyper(0.5, groups="equal")').replace(
        ' * norm(b, over="all")', " * b"
    ),
    "a size of a number": spec('p = p - lr * g * norm(lr, over="all")'),
}


@pytest.mark.parametrize("case", CASES)
def test_error(case: str, golden: Golden) -> None:
    with pytest.raises(SpecError) as caught:
        read(CASES[case])
    golden.check(str(caught.value))
