"""Test which hyperparameters a prepared rule keeps."""

from __future__ import annotations

import pytest
from spec_texts import read, spec

from optgen.passes.plan_rule import plan

STATE = 'm=state("exp_avg", init="first")'


@pytest.mark.parametrize(
    ("hypers", "update", "received_names"),
    [
        ("first=hyper(1), lr=hyper(0.1)", "p = p - lr * m", ["lr", "maximize"]),
        ("first=hyper(1)", "p = p - first * m", ["first", "maximize"]),
    ],
)
def test_a_lowering_receives_only_hyperparameters_that_the_rule_reads(
    hypers: str, update: str, received_names: list[str]
) -> None:
    algorithm = read(spec("m = m + g", update, states=STATE, hypers=hypers))

    assert [h.name for h in plan(algorithm).algorithm.hypers] == received_names
