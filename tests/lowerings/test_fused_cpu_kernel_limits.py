"""Test the errors for rules that a C++ kernel cannot hold."""

from __future__ import annotations

import pytest

from optgen.emit import render
from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import RuleError
from optgen.lowerings.fused_cpu import FUSED_CPU
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

HEAD = "from optgen.spec import *\n\n@optimizer()\ndef Many(p, g, /, {}, *, lr=hyper(0.1)):\n"


def rule_with_row_means(count: int) -> Algorithm:
    """Return a rule that computes `count` row means, each from the previous one."""
    means = [f"h{n} = row_mean(g**{n + 2} * h{n - 1})" for n in range(1, count)]
    lines = ['"""Made up."""', "require(factored(p), '{shape}')", "h0 = row_mean(g)", *means]
    return read_rule(
        "r=state('key_r', shape='row')", [*lines, f"r = h{count - 1}", "p = p - lr * r"]
    )


def read_rule(states: str, lines: list[str]) -> Algorithm:
    text = HEAD.format(states) + "".join(f"    {line}\n" for line in lines)
    (algorithm,) = read_spec(Spec("many", text, "many.py", 1))
    return algorithm


def test_too_many_reductions_are_refused_at_the_line_of_the_rule() -> None:
    with pytest.raises(RuleError, match="at most 64 reductions") as caught:
        render(rule_with_row_means(32), FUSED_CPU, None)  # each takes three reductions and loops
    assert caught.value.place.line == 4  # of `def Many`
