"""Test that an uncut plan reads the right version of each value (for the functional form)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz.draw import draw
from planning import WITH_PHASES

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import RuleError
from optgen.ir.verify_reads import StaleReadError, verify_reads
from optgen.passes import dead_code
from optgen.passes import plan_rule as planner
from optgen.passes.prepare_rule import fact_combinations
from optgen.passes.split_scalars import Splitter
from optgen.spec import Spec
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec

FOUND = Path(__file__).parents[1] / "fuzz" / "found"


@pytest.fixture(autouse=True)
def keep_copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the copies of a name to its next version: the verifier needs them to follow versions."""
    monkeypatch.setattr(dead_code, "without_self_copies", lambda program: program)
    yield
    planner._cached_plan.cache_clear()


def check_reads(algorithm: Algorithm) -> None:
    """Check that the uncut plans of a rule, one for each set of facts, read no stale value."""
    planner._cached_plan.cache_clear()
    for facts in fact_combinations(algorithm):
        verify_reads(planner.plan(algorithm, facts, "whole"))


@pytest.mark.parametrize("name", WITH_PHASES)
def test_plans_of_rules_read_the_right_versions(name: str) -> None:
    check_reads(WITH_PHASES[name])


def test_plans_of_drawn_rules_read_the_right_versions() -> None:
    checked = 0
    for seed in range(60):
        try:
            (algorithm,) = read_spec(Spec("random", draw(f"whole {seed}")[0], "<drawn>", 1))
            check_reads(algorithm)
        except (SpecError, RuleError):
            continue
        checked += 1
    assert checked > 30


def test_a_stale_read_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the splitter's check, a value is inlined after a scalar that it reads has changed."""
    (algorithm,) = read_spec(FOUND / "old_scalar_state_in_a_column_value.py")
    check_reads(algorithm)
    monkeypatch.setattr(Splitter, "_overwritten_before_last_use", lambda *_: False)
    with pytest.raises(StaleReadError, match="key_f is read where its variable holds"):
        check_reads(algorithm)
