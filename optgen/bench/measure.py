"""Measure step times of several variants, so that their ratios are reliable.

All variants run in one process, in a new order each round. A sample is one *cold* step, with
gradients at new addresses and other data in the caches, and then repeated steps until 20 ms have
passed; none if the cold step took 0.2 s. In each round every variant takes a sample, until it has
used its share of the time, so fast variants are sampled more often. The speed of a loop over cached
data varies by up to a sixth with the memory pages of its tensors. So variants whose data fits into
the caches are created anew several times.
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

_SAMPLE_SECONDS = 0.02  # a sample repeats the step for this time
_SLOW_STEP_SECONDS = 0.2  # the data of such a step exceeds every cache, so each step is cold
_CACHE_BYTES = 64 << 20  # other data of this size replaces the contents of all caches


@dataclass(frozen=True)
class Budget:
    """Limits of a measurement: seconds in total, and samples of each variant. Also its clock."""

    seconds: float = 5.0
    max_samples: int = 15
    min_samples: int = 3
    clock: Callable[[], float] = time.perf_counter

    def up_to(self, repeat: int, num_repeats: int) -> "Budget":
        """Return the budget up to the end of a repeat, with the seconds that earlier ones left."""
        return replace(
            self,
            seconds=self.seconds * repeat / num_repeats,
            max_samples=ceil(self.max_samples / num_repeats),
            min_samples=ceil(self.min_samples / num_repeats),
        )


@dataclass
class _Samples:
    """Times of a variant: milliseconds of cold and of repeated steps, and seconds spent on them."""

    cold: list[float] = field(default_factory=list)
    repeated: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def figures(self) -> StepTimes:
        return {
            "median": statistics.median(self.repeated),
            "min": min(self.repeated),
            "cold": statistics.median(self.cold),
            "cold_min": min(self.cold),
            "samples": len(self.cold),
        }


def compare(
    variants: Mapping[str, Variant], new_gradients: Callable[[], Sequence[Tensor]], budget: Budget
) -> dict[str, StepTimes]:
    """Return the figures of every variant. In a round all variants get the same new gradients."""
    return compare_recreated(lambda: variants, new_gradients, budget, repeats=1)


def compare_recreated(
    create: Callable[[], Mapping[str, Variant]],
    new_gradients: Callable[[], Sequence[Tensor]],
    budget: Budget,
    repeats: int,
) -> dict[str, StepTimes]:
    """Return the figures of variants that `create` makes anew, `repeats` times."""
    other_data = torch.zeros(_CACHE_BYTES, dtype=torch.uint8)
    samples: defaultdict[str, _Samples] = defaultdict(_Samples)
    for repeat in range(1, repeats + 1):
        variants = create()  # before the previous variants are freed, so that addresses are new
        _measure(variants, new_gradients, other_data, samples, budget.up_to(repeat, repeats))
    return {title: samples[title].figures() for title in variants}


def _measure(
    variants: Mapping[str, Variant],
    new_gradients: Callable[[], Sequence[Tensor]],
    other_data: Tensor,
    samples: dict[str, _Samples],
    budget: Budget,
) -> None:
    gradients = new_gradients()
    for variant in variants.values():
        variant.set_gradients(gradients)
        _warm_up(variant.step)
    seconds_of_variant = budget.seconds / len(variants)
    for turn in range(budget.max_samples):
        remaining = [
            title
            for title in variants
            if turn < budget.min_samples or samples[title].seconds < seconds_of_variant
        ]
        # Before the previous gradients are freed, so that addresses are new.
        gradients = new_gradients()
        for title in random.sample(remaining, len(remaining)):
            variants[title].set_gradients(gradients)
            other_data.add_(1)
            _sample(variants[title].step, samples[title], budget.clock)


def _sample(step: Callable[[], Any], samples: _Samples, clock: Callable[[], float]) -> None:
    start = clock()
    step()
    cold = clock() - start
    repeated = mean_seconds(step, clock) if cold < _SLOW_STEP_SECONDS else cold
    samples.cold.append(cold * 1e3)
    samples.repeated.append(repeated * 1e3)
    samples.seconds += clock() - start


def mean_seconds(step: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the mean seconds of a step, over as many steps as take 20 ms."""
    count = 0
    start = clock()
    while True:
        step()
        count += 1
        seconds = clock() - start
        if seconds >= _SAMPLE_SECONDS:
            return seconds / count


def _warm_up(step: Callable[[], Any]) -> None:
    """Take a few steps, because the first steps of an optimizer may do more than later ones."""
    start = time.perf_counter()
    for _ in range(3):
        step()
        if time.perf_counter() - start > _SLOW_STEP_SECONDS:
            break
