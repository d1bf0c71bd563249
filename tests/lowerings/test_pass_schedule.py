"""Test that C++ passes of rules with phases read the right versions of values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from fuzz.draw import draw
from lowerings.pass_check import wrong_reads
from planning import WITH_PHASES

import optgen.lowerings.fused_cpu as fused_cpu
from optgen.ir.algorithm import Algorithm
from optgen.ir.errors import RuleError
from optgen.ir.whole_matrices import why_uncut
from optgen.lowerings.fused_cpu import phased_rule
from optgen.lowerings.fused_cpu.pass_schedule import Pass, PassScheduler, tiling_strategies
from optgen.lowerings.fused_cpu.phase_steps import Step
from optgen.spec import Spec
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec

FOUND = Path(__file__).parents[1] / "fuzz" / "found"
WIDE = Path(__file__).parents[1] / "specs" / "odd_wide.py"


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets a message for each fault of every schedule from now on."""
    messages: list[str] = []

    def watched(steps: list, streams: dict, has_axes: bool) -> dict:  # type: ignore[type-arg]
        strategies = tiling_strategies(steps, streams, has_axes)
        axes = dict(streams)
        axes |= {n: step.axes for step in steps for n in step.writes if n not in axes}
        messages.extend(wrong_reads(steps, axes, list(streams), strategies))
        messages.extend(_changed_orders(steps, strategies))
        return strategies

    monkeypatch.setattr(phased_rule, "tiling_strategies", watched)
    return messages


def _changed_orders(
    steps: Sequence[Step], strategies: Mapping[str, Sequence[Pass]]
) -> Iterator[str]:
    """Yield a message for each strategy that changes the order of reductions over parameters."""
    wide = [step.name for step in steps if step.reduction and not step.reduces_values]
    for name, passes in strategies.items():
        finished = [step.name for each in passes for step in each.finish]
        if passes and [step for step in finished if step in wide] != wide:
            yield f"{name}: not in the order {wide}"


def _drawn(seeds: range) -> Iterator[Algorithm]:
    """Yield the drawn rules that are cut into phases."""
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
    checked = 0
    for algorithm in _drawn(range(60)):
        try:
            fused_cpu.lower(algorithm)
        except RuleError:
            continue
        checked += 1
        assert faults == []
    assert checked > 10


def test_reductions_over_parameters_keep_their_order(faults: list[str]) -> None:
    (algorithm,) = read_spec(WIDE)
    fused_cpu.lower(algorithm)
    assert faults == []


def test_passes_of_a_rule_that_once_failed_read_the_right_versions(faults: list[str]) -> None:
    (algorithm,) = read_spec(FOUND / "where_of_columns_beside_an_old_column_state.py")
    fused_cpu.lower(algorithm)
    assert faults == []


def test_a_wrong_schedule_is_found(faults: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its last check, a schedule reads a new column value for the old one."""
    monkeypatch.setattr(PassScheduler, "_reruns_after_store", lambda *_: False)
    (algorithm,) = read_spec(FOUND / "where_of_columns_beside_an_old_column_state.py")
    fused_cpu.lower(algorithm)
    assert "EXACT_MATRICES, pass 1, step columns1: reads version 8 of key_k, not -1" in faults
