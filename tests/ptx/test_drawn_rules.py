"""Test kernels of rules and compositions drawn by lot, on an emulated device.

Each step is compared with the oracle's, with bounds on rounding errors: in float64, and in a
narrower dtype for some rules.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
from interpreter import outside_interpreter

pytest.importorskip("triton")

from fuzz import build, modifier_matrix, time_limit
from fuzz.draw import draw
from fuzz.hunt import Tally, check_rule
from fuzz.trial import Setting

from optgen.spec.composition.check_parts import CompositionError
from optgen.spec.errors import SpecError
from ptx.emulate import Device, emulated

pytestmark = outside_interpreter

PARTS, RULES_OF_PART = 40, 5
"""Rules are drawn for this many tests; some are refused, or have no Triton kernels."""
COMPOSITIONS = modifier_matrix.cases("rules")[::9] + modifier_matrix.cases("chains")[::12]
COMPOSITIONS_OF_PART = 4

Drawn = Callable[[str], tuple[str, list[Setting]]]


@pytest.mark.one_case_in(PARTS, thorough=10)
@pytest.mark.parametrize("part", range(PARTS))
def test_drawn_rules(part: int) -> None:
    seeds = [f"emulated {part} {number}" for number in range(RULES_OF_PART)]
    tally, device = run_rules(seeds, draw)
    assert tally.compared
    assert device.launches


@pytest.mark.one_case_in(len(COMPOSITIONS), thorough=9)
@pytest.mark.parametrize("first", range(0, len(COMPOSITIONS), COMPOSITIONS_OF_PART))
def test_compositions(first: int) -> None:
    names = COMPOSITIONS[first : first + COMPOSITIONS_OF_PART]
    run_rules(names, modifier_matrix.compose_case)


def run_rules(seeds: list[str], drawn: Drawn) -> tuple[Tally, Device]:
    """Run the rules that optgen accepts and Triton can step; fail at the first wrong one."""
    tally, device = Tally(), Device()
    with emulated(device), mock.patch.object(time_limit, "_MAX_SECONDS", 600.0):
        for seed in seeds:
            try:
                text, settings = drawn(seed)
                rule = build.load(text)
            except (CompositionError, SpecError):
                continue
            tally.drawn += 1
            findings = check_rule(
                rule, settings, ("fused_triton",), tally, skip_some_triton_runs=False
            )
            assert not findings, f"{seed}\n{findings[0].message}\n{text}\n{findings[0].setting}"
    return tally, device
