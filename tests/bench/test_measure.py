"""Rounds of samples: who takes part, for how long, and what comes of it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from torch import Tensor, zeros

from optgen.bench import measure
from optgen.bench.measure import Budget, compare, seconds_of


class Sleeper:
    """A variant whose steps take so long; it notes what it was given."""

    def __init__(self, seconds: float, log: list[str], name: str) -> None:
        self._seconds, self._log, self._name = seconds, log, name
        self.given: list[int] = []

    def take(self, gradients: Sequence[Tensor]) -> None:
        self._log.append(self._name)
        self.given.append(gradients[0].data_ptr())

    def step(self) -> None:
        time.sleep(self._seconds)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_LONG", 0.002)
    monkeypatch.setattr(measure, "_CACHES", 1000)


def test_the_slow_one_has_its_share_and_no_more() -> None:
    log: list[str] = []
    both = {"quick": Sleeper(0.0005, log, "quick"), "slow": Sleeper(0.01, log, "slow")}

    found = compare(both, lambda: [zeros(3)], Budget(0.1, most=8, least=2))

    assert found["slow"]["samples"] < found["quick"]["samples"] == 8
    assert found["slow"]["samples"] >= 2
    for figures in found.values():
        assert figures["min"] <= figures["median"]
        assert figures["cold_min"] <= figures["cold"]
    assert found["slow"]["median"] > found["quick"]["median"] > 0.5


def test_gradients_move_from_round_to_round() -> None:
    one = Sleeper(0, [], "")

    compare({"one": one}, lambda: [zeros(1000)], Budget(1, most=4))

    assert all(a != b for a, b in zip(one.given, one.given[1:], strict=False))


def test_the_order_changes() -> None:
    log: list[str] = []
    three = {name: Sleeper(0, log, name) for name in "abc"}

    compare(three, lambda: [zeros(1)], Budget(1, most=15))

    rounds = {tuple(log[i : i + 3]) for i in range(3, len(log), 3)}
    assert len(rounds) > 1
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)


def test_what_no_cache_holds_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_ENDLESS", 0.0)

    found = compare({"one": Sleeper(0.001, [], "")}, lambda: [zeros(1)], Budget(1, most=3))["one"]

    assert found["cold"] == found["median"]


def test_a_sample_is_long_enough() -> None:
    begin = time.perf_counter()

    assert 0 < seconds_of(lambda: None) < 1e-4
    assert time.perf_counter() - begin >= 0.002
