"""Test the sampling of variants with a fake clock: order, number of samples, and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from torch import Tensor, zeros

from optgen.bench import measure
from optgen.bench.measure import Budget, compare, compare_recreated, mean_seconds


@dataclass
class Clock:
    """A clock that advances only when a variant takes a step."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FixedTimeVariant:
    """A variant whose steps take a fixed time; it logs its turns and its gradients' addresses."""

    seconds: float
    clock: Clock
    name: str = ""
    log: list[str] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)

    def set_gradients(self, gradients: Sequence[Tensor]) -> None:
        self.log.append(self.name)
        self.addresses.append(gradients[0].data_ptr())

    def step(self) -> None:
        self.clock.now += self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(measure, "_CACHE_BYTES", 1000)
    return Clock()


def test_a_slow_variant_gets_its_share_of_the_time(clock: Clock) -> None:
    variants = {"quick": FixedTimeVariant(0.001, clock), "slow": FixedTimeVariant(0.1, clock)}

    times = compare(
        variants, lambda: [zeros(3)], Budget(1.0, max_samples=15, min_samples=2, clock=clock)
    )

    assert times["quick"]["samples"] == 15
    assert times["slow"]["samples"] == 3  # each sample has a cold and a repeated step
    assert times["quick"] == pytest.approx(
        {"median": 1, "min": 1, "cold": 1, "cold_min": 1, "samples": 15}
    )
    assert times["slow"]["median"] == pytest.approx(100)


def test_a_variant_gets_the_minimum_number_of_samples_without_time_left(clock: Clock) -> None:
    times = compare(
        {"one": FixedTimeVariant(5, clock)},
        lambda: [zeros(1)],
        Budget(0, min_samples=3, clock=clock),
    )

    assert times["one"]["samples"] == 3


def test_gradients_have_new_addresses_in_every_round(clock: Clock) -> None:
    stub = FixedTimeVariant(0.01, clock)

    compare({"one": stub}, lambda: [zeros(1000)], Budget(10, max_samples=4, clock=clock))

    assert all(a != b for a, b in zip(stub.addresses, stub.addresses[1:], strict=False))


def test_the_order_of_variants_changes_from_round_to_round(clock: Clock) -> None:
    log: list[str] = []
    variants = {name: FixedTimeVariant(0.01, clock, name, log) for name in "abc"}

    compare(variants, lambda: [zeros(1)], Budget(100, max_samples=15, clock=clock))

    rounds = {tuple(log[i : i + 3]) for i in range(3, len(log), 3)}
    assert len(rounds) > 1
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)


def test_caches_are_refilled_before_each_cold_step(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    refill_times: list[float] = []
    memory = SimpleNamespace(add_=lambda _: refill_times.append(clock.now))
    monkeypatch.setattr(measure.torch, "zeros", lambda *size, **options: memory)
    variants = {name: FixedTimeVariant(0.5, clock) for name in "ab"}

    compare(variants, lambda: [zeros(1)], Budget(10, max_samples=2, clock=clock))

    assert refill_times == [3, 3.5, 4, 4.5]  # after three steps of warm-up of each variant


def test_a_slow_step_is_not_repeated(clock: Clock) -> None:
    compare(
        {"one": FixedTimeVariant(0.3, clock)},
        lambda: [zeros(1)],
        Budget(10, max_samples=2, clock=clock),
    )

    assert clock.now == pytest.approx(0.3 * (3 + 2))  # 3 steps of warm-up, 2 samples


def test_mean_seconds_repeats_a_short_step_for_20_ms(clock: Clock) -> None:
    assert mean_seconds(FixedTimeVariant(0.003, clock).step, clock) == pytest.approx(0.003)
    assert clock.now == pytest.approx(0.021)


def test_recreated_variants_share_the_samples(clock: Clock) -> None:
    log: list[str] = []
    created: list[FixedTimeVariant] = []

    def create() -> dict[str, FixedTimeVariant]:
        created.append(FixedTimeVariant(0.01 * len(created) + 0.01, clock, str(len(created)), log))
        return {"one": created[-1]}

    times = compare_recreated(
        create, lambda: [zeros(1)], Budget(100, max_samples=15, clock=clock), repeats=5
    )

    assert log == [name for name in "01234" for _ in range(1 + 3)]  # warm-up, then three samples
    assert times["one"]["samples"] == 15
    assert times["one"]["cold"] == pytest.approx(30)  # the median of all repeats


def test_a_repeat_gets_the_unused_time_of_the_previous_ones(clock: Clock) -> None:
    log: list[str] = []

    def create() -> dict[str, FixedTimeVariant]:
        return {"one": FixedTimeVariant(0.125, clock, "", log)}

    times = compare_recreated(
        create, lambda: [zeros(1)], Budget(1.25, max_samples=50, clock=clock), repeats=5
    )

    assert times["one"]["samples"] == 5  # each sample takes 0.25 s
