"""Measure step times of several variants, so that their ratios are reliable.

All variants run in one process, in a new order each round. A sample is one *cold* step, with
gradients at new addresses and other data in the caches, followed by steps repeated for 20 ms (one
step if it takes longer, none if it takes 0.2 s). In each round every variant takes a sample, until
it has used its share of the time, so fast variants are sampled more often. The speed of a loop over
cached data varies by up to a sixth with the memory pages of its tensors. So variants whose data
fits into the caches are created anew several times.
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

StepTimes = dict[str, float]
"""Milliseconds of a step: `median` and `min` of repeated steps, `cold` and `cold_min` of cold ones.

The number of samples is under `samples`.
"""

_SAMPLE_SECONDS = 0.02  # for which a sample repeats the step
_SLOW_STEP = 0.2  # seconds; the data of such a step exceeds every cache, so each step is cold
_CACHE_BYTES = 64 << 20  # of other data, which replaces the contents of all caches


@dataclass(frozen=True)
class Budget:
    """Limits of a measurement: total seconds, and samples of a variant; and its clock."""

    seconds: float = 5.0
    max_samples: int = 15
    min_samples: int = 3
    clock: Callable[[], float] = time.perf_counter

    def up_to(self, draw: int, draws: int) -> "Budget":
        """Return the budget up to the end of a draw, with the seconds that earlier draws left."""
        return replace(
            self,
            seconds=self.seconds * draw / draws,
            max_samples=ceil(self.max_samples / draws),
            min_samples=ceil(self.min_samples / draws),
        )


@dataclass
class _Samples:
    """Times of a variant: milliseconds of cold and of repeated steps, and seconds spent on them."""

    cold: list[float] = field(default_factory=list)
    repeated: list[float] = field(default_factory=list)
    spent: float = 0.0

    def figures(self) -> StepTimes:
        return {
            "median": statistics.median(self.repeated),
            "min": min(self.repeated),
            "cold": statistics.median(self.cold),
            "cold_min": min(self.cold),
            "samples": len(self.cold),
        }


def compare(
    variants: Mapping[str, Variant], renew: Callable[[], Sequence[Tensor]], budget: Budget
) -> dict[str, StepTimes]:
    """Return the figures of every variant. A round has new gradients, common to all variants."""
    return compare_redrawn(lambda: variants, renew, budget, draws=1)


def compare_redrawn(
    draw: Callable[[], Mapping[str, Variant]],
    renew: Callable[[], Sequence[Tensor]],
    budget: Budget,
    draws: int,
) -> dict[str, StepTimes]:
    """Return the figures of variants that `draw` creates anew, `draws` times."""
    other_data = torch.zeros(_CACHE_BYTES, dtype=torch.uint8)
    samples: defaultdict[str, _Samples] = defaultdict(_Samples)
    for number in range(1, draws + 1):
        variants = draw()  # before the previous variants are freed, so that addresses are new
        _measure(variants, renew, other_data, samples, budget.up_to(number, draws))
    return {title: samples[title].figures() for title in variants}


def _measure(
    variants: Mapping[str, Variant],
    renew: Callable[[], Sequence[Tensor]],
    other_data: Tensor,
    samples: dict[str, _Samples],
    budget: Budget,
) -> None:
    gradients = renew()
    for variant in variants.values():
        variant.set_gradients(gradients)
        _warm_up(variant.step)
    share = budget.seconds / len(variants)
    for turn in range(budget.max_samples):
        remaining = [t for t in variants if turn < budget.min_samples or samples[t].spent < share]
        gradients = renew()  # before the previous gradients are freed, so that addresses are new
        for title in random.sample(remaining, len(remaining)):
            variants[title].set_gradients(gradients)
            other_data.add_(1)
            _sample(variants[title].step, samples[title], budget.clock)


def _sample(step: Callable[[], Any], samples: _Samples, clock: Callable[[], float]) -> None:
    begin = clock()
    step()
    cold = clock() - begin
    repeated = seconds_of(step, clock) if cold < _SLOW_STEP else cold
    samples.cold.append(cold * 1e3)
    samples.repeated.append(repeated * 1e3)
    samples.spent += clock() - begin


def seconds_of(step: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the mean seconds of a step, over as many steps as take 20 ms."""
    count = 0
    begin = clock()
    while True:
        step()
        count += 1
        passed = clock() - begin
        if passed >= _SAMPLE_SECONDS:
            return passed / count


def _warm_up(step: Callable[[], Any]) -> None:
    """Take a few steps, because an optimizer may treat its first steps differently."""
    begin = time.perf_counter()
    for _ in range(3):
        step()
        if time.perf_counter() - begin > _SLOW_STEP:
            break
