"""Scalar state rounds where torch's for-loop rounds it, through every lowering to the last bit."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, outside, run_inside

import optgen
from optgen import use_lowering
from optgen.ir.evaluate import evaluate
from optgen.spec import Spec
from optgen.spec.read import read_spec

STEPS = 40
LOWERINGS = ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu")
RULES = {
    "the issue's": "s = 0.5 * (s * mu + nu) + t * 0.1",
    "operands without it": "s = s + (0.1 * mu + nu * nu) / (mu + 0.3)",
    "deep": "s = ((s * mu - nu) * 0.7 + mu) * (1.1 - s * nu)",
    "twice": "s = s * s * mu + (s - nu) * (s + nu) * 0.1",
    "functions": "s = sqrt(abs(s) * mu + nu) + maximum(nu * 0.3, s * 0.9) - minimum(s, mu)",
    "a choice": "s = where(s * mu > nu, s * 0.7, s + mu * 0.1)",
    "a name between": "x = s * mu; s = x * 0.3 + nu * s",
    "none of it": "s = mu * 0.1 + t * nu",
    "a branch": "if s * mu > nu: s = s * 0.7\nelse: s = (s + mu) * 1.1",
}


@outside
def test_in_a_process_with_the_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__)


@functools.cache
def spec(rule: str) -> Spec:
    body = "\n".join(f"    {line}" for line in rule.replace("; ", "\n").splitlines())
    body = body.replace(": s", ":\n        s")
    text = f'''
from optgen.spec import *

@optimizer()
def Small(
    p, g, t, /, s=state("s", shape="scalar", init=1.0), *,
    lr=hyper(0.1), mu=hyper(0.7312345678901), nu=hyper(0.2198765432109)
):
    """Keeps a number."""
{body}
    p = p - lr * s * t * mu * nu * g
'''
    return Spec("Small", text, "<small>", 1)


@functools.cache
def by_the_rule(rule: str) -> list[float]:
    (algorithm,) = read_spec(spec(rule))
    hypers = {hyper.name: hyper.default for hyper in algorithm.hypers}
    param, state, kept = torch.ones(1), {}, []
    for _ in range(STEPS):
        param, state = evaluate(algorithm, hypers, param, torch.ones(1), state, torch.float32)
        assert state["s"].dtype is torch.float32
        kept.append(float(state["s"]))
    return kept


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", RULES)
def test_every_lowering_keeps_the_same_bits(name: str, lowering: str) -> None:
    param = torch.ones(1, dtype=torch.float64, requires_grad=True)
    optimizer: Any = optgen.load(spec(RULES[name]))([param])
    kept = []
    for _ in range(STEPS):
        param.grad = torch.ones(1, dtype=torch.float64)
        with use_lowering(lowering):
            optimizer.step()
        kept.append(float(optimizer.state[param]["s"]))

    assert kept == by_the_rule(RULES[name])


def test_rounding_differs_from_computing_in_double() -> None:
    """Else the test above could not fail."""
    s = 1.0
    for step in range(1, STEPS + 1):
        s = 0.5 * (s * 0.7312345678901 + 0.2198765432109) + step * 0.1

    assert float(torch.tensor(s, dtype=torch.float32)) != by_the_rule(RULES["the issue's"])[-1]
