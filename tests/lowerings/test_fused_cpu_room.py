"""A rule too large for the C++ kernels' tables is refused with its place and a way out."""

from __future__ import annotations

import pytest

from optgen.emit import render
from optgen.ir.algorithm import Algorithm
from optgen.ir.errors import RuleError
from optgen.lowerings.fused_cpu import FUSED_CPU
from optgen.spec import Spec
from optgen.spec.read import read_spec

HEAD = "from optgen.spec import *\n\n@optimizer()\ndef Many(p, g, /, {}, *, lr=hyper(0.1)):\n"


def with_states(count: int) -> Algorithm:
    names = [f"s{n}" for n in range(count)]
    lines = ['"""Made up."""', *(f"{s} = {s} + g" for s in names), "p = p - lr * s0"]
    return read(", ".join(f"{s}=state('key_{s}')" for s in names), lines)


def with_sums(count: int) -> Algorithm:
    sums = [f"h{n} = row_mean(g**{n + 2} * h{n - 1})" for n in range(1, count)]
    lines = ['"""Made up."""', "require(factored(p), '{shape}')", "h0 = row_mean(g)", *sums]
    return read("r=state('key_r', shape='row')", [*lines, f"r = h{count - 1}", "p = p - lr * r"])


def read(states: str, lines: list[str]) -> Algorithm:
    text = HEAD.format(states) + "".join(f"    {line}\n" for line in lines)
    (algorithm,) = read_spec(Spec("many", text, "many.py", 1))
    return algorithm


def test_as_many_states_as_there_is_room_for() -> None:
    assert "STREAMS" in render(with_states(14), FUSED_CPU, None)


def test_one_state_too_many_is_refused_where_the_last_one_stands() -> None:
    with pytest.raises(RuleError, match="here it has 17") as found:
        render(with_states(15), FUSED_CPU, None)
    assert found.value.place.line == 4
    assert found.value.hint == "keep fewer states"


def test_too_many_sums_are_refused_at_the_rule() -> None:
    with pytest.raises(RuleError, match="at most 64 reductions") as found:
        render(with_sums(32), FUSED_CPU, None)
    assert found.value.place.line == 4
