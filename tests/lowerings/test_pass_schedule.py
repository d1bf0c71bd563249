"""Test that C++ passes of rules with phases read the right versions of values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from fuzz.draw import draw
from lowerings.pass_check import wrong_reads_and_stores
from planning import WITH_PHASES

import optgen.lowerings.fused_cpu as fused_cpu
from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import RuleError
from optgen.lowerings.fused_cpu import phased_file
from optgen.lowerings.fused_cpu.kernel_steps import Step
from optgen.lowerings.fused_cpu.pass_schedule import Pass, TileSchedule, tiling_strategies
from optgen.passes.plan_rule import why_uncut
from optgen.spec import Spec
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec

RECORDED_RULES = Path(__file__).parents[1] / "fuzz" / "found"
WIDE_RULE = Path(__file__).parents[1] / "specs" / "odd_wide.py"


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets a message for each fault of every schedule from now on."""
    messages: list[str] = []

    def checked_strategies(steps: list, streams: dict, has_axes: bool) -> dict:  # type: ignore[type-arg]
        strategies = tiling_strategies(steps, streams, has_axes)
        axes = dict(streams)
        axes |= {n: step.axes for step in steps for n in step.writes if n not in axes}
        messages.extend(wrong_reads_and_stores(steps, axes, list(streams), strategies))
        messages.extend(changed_orders(steps, strategies))
        return strategies

    monkeypatch.setattr(phased_file, "tiling_strategies", checked_strategies)
    return messages


def changed_orders(
    steps: Sequence[Step], strategies: Mapping[str, Sequence[Pass]]
) -> Iterator[str]:
    """Yield a message for each strategy that changes the order of reductions over parameters."""
    expected = [step.name for step in steps if step.reduction and not step.reduces_values]
    for strategy, passes in strategies.items():
        after_tiles = [step.name for each in passes for step in each.after_tiles]
        if passes and [name for name in after_tiles if name in expected] != expected:
            yield f"{strategy}: not in the order {expected}"


def phased_rules(seeds: range) -> Iterator[Algorithm]:
    """Yield the rules that are drawn from seeds and cut into phases."""
    for seed in seeds:
        try:
            (algorithm,) = read_spec(Spec("random", draw(f"passes {seed}")[0], "<drawn>", 1))
        except SpecError:
            continue
        if not (algorithm.elementwise or why_uncut(algorithm)):
            yield algorithm


@pytest.mark.parametrize("name", WITH_PHASES)
def test_passes_of_rules_read_the_right_versions(name: str, faults: list[str]) -> None:
    fused_cpu.lower(WITH_PHASES[name])
    assert faults == []


def test_passes_of_drawn_rules_read_the_right_versions(faults: list[str]) -> None:
    checked_rules = 0
    for algorithm in phased_rules(range(60)):
        try:
            fused_cpu.lower(algorithm)
        except RuleError:
            continue
        checked_rules += 1
        assert faults == []
    assert checked_rules > 10


def test_reductions_over_parameters_keep_their_order(faults: list[str]) -> None:
    (algorithm,) = read_spec(WIDE_RULE)
    fused_cpu.lower(algorithm)
    assert faults == []


def test_passes_of_a_rule_that_once_failed_read_the_right_versions(faults: list[str]) -> None:
    (algorithm,) = read_spec(RECORDED_RULES / "where_of_columns_beside_an_old_column_state.py")
    fused_cpu.lower(algorithm)
    assert faults == []


def test_the_check_finds_a_wrong_schedule(
    faults: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its last check, a schedule reads a new column value for the old one."""
    monkeypatch.setattr(TileSchedule, "stores_too_early", lambda _: False)
    (algorithm,) = read_spec(RECORDED_RULES / "where_of_columns_beside_an_old_column_state.py")
    fused_cpu.lower(algorithm)
    assert "EXACT_MATRICES, pass 1, step columns1: reads version 8 of key_k, not -1" in faults
