"""Times of steps, as ratios need them: one process, variants in a new order each round.

A sample is a *cold* step, with gradients at new addresses and the caches full of something else,
then steps repeated for 20 ms, or one step where that is longer. Every variant takes a sample in a
round, until it has had its share of the time; what is quick is sampled more often. How fast
a loop goes through the caches depends on the pages that its tensors were given, by up to a sixth:
what caches hold is drawn, which is to say made, several times.
"""

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import torch
from torch import Tensor

from optgen.bench.variants import Variant

Figures = dict[str, float]
"""Milliseconds a step: `median` and `min` repeated, `cold` and `cold_min`; how many `samples`."""

_LONG = 0.02
_ENDLESS = 0.2  # no cache holds what takes so long to go through: a cold step is as good as another
_CACHES = 64 << 20


@dataclass(frozen=True)
class Budget:
    """How long to measure, in all and at least; and by which clock."""

    seconds: float = 5.0
    most: int = 15
    least: int = 3
    clock: Callable[[], float] = time.perf_counter

    def up_to(self, draw: int, draws: int) -> "Budget":
        """What a draw may take; of seconds, what the draws before it left too."""
        return replace(
            self,
            seconds=self.seconds * draw / draws,
            most=ceil(self.most / draws),
            least=ceil(self.least / draws),
        )


@dataclass
class _Samples:
    cold: list[float] = field(default_factory=list)
    repeated: list[float] = field(default_factory=list)
    spent: float = 0.0

    def figures(self) -> Figures:
        return {
            "median": statistics.median(self.repeated),
            "min": min(self.repeated),
            "cold": statistics.median(self.cold),
            "cold_min": min(self.cold),
            "samples": len(self.cold),
        }


def compare(
    variants: Mapping[str, Variant], renew: Callable[[], Sequence[Tensor]], budget: Budget
) -> dict[str, Figures]:
    """The figures of every variant; each round has new gradients, the same for all."""
    return redrawn(lambda: variants, renew, budget, draws=1)


def redrawn(
    draw: Callable[[], Mapping[str, Variant]],
    renew: Callable[[], Sequence[Tensor]],
    budget: Budget,
    draws: int,
) -> dict[str, Figures]:
    """The figures of variants that are made so many times."""
    fill = torch.zeros(_CACHES, dtype=torch.uint8)
    samples: defaultdict[str, _Samples] = defaultdict(_Samples)
    for number in range(1, draws + 1):
        variants = draw()  # while the last ones are there still: somewhere else
        _measure(variants, renew, fill, samples, budget.up_to(number, draws))
    return {title: samples[title].figures() for title in variants}


def _measure(
    variants: Mapping[str, Variant],
    renew: Callable[[], Sequence[Tensor]],
    fill: Tensor,
    samples: dict[str, _Samples],
    budget: Budget,
) -> None:
    gradients = renew()
    for variant in variants.values():
        variant.take(gradients)
        _warm_up(variant.step)
    share = budget.seconds / len(variants)
    for turn in range(budget.most):
        left = [t for t in variants if turn < budget.least or samples[t].spent < share]
        gradients = renew()  # while the last ones are there still: somewhere else
        for title in random.sample(left, len(left)):
            variants[title].take(gradients)
            fill.add_(1)
            _sample(variants[title].step, samples[title], budget.clock)


def _sample(step: Callable[[], Any], samples: _Samples, clock: Callable[[], float]) -> None:
    begin = clock()
    step()
    cold = clock() - begin
    repeated = seconds_of(step, clock) if cold < _ENDLESS else cold
    samples.cold.append(cold * 1e3)
    samples.repeated.append(repeated * 1e3)
    samples.spent += clock() - begin


def seconds_of(step: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Of one of as many steps as take 20 ms."""
    count = 0
    begin = clock()
    while True:
        step()
        count += 1
        passed = clock() - begin
        if passed >= _LONG:
            return passed / count


def _warm_up(step: Callable[[], Any]) -> None:
    """A few steps: an optimizer may treat its first ones differently."""
    begin = time.perf_counter()
    for _ in range(3):
        step()
        if time.perf_counter() - begin > _ENDLESS:
            break
