"""Test that the benchmark of the host's part measures repeated steps, and launches nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from benchmarks.triton_host import NAMES, measure, variants, without_a_gpu
from optgen.runtime.fused_triton.cached_step import CachedLaunches


@pytest.mark.parametrize("name", NAMES)
def test_every_variant_is_measured(name: str) -> None:
    with without_a_gpu():
        figures = measure(name, count=3, rounds=2)

    has_torch = name in ("AdamW", "SGD")
    titles = ["repeated", "with moved gradients", *["torch fused"] * has_torch]
    assert list(figures) == titles
    assert all(0 < each["min"] <= each["median"] for each in figures.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_measured_steps_are_cached(name: str) -> None:
    with without_a_gpu():
        steps = variants(name, count=2)
        for title in ("repeated", "with moved gradients"):
            for _ in range(3):
                step = steps[title]()
                step()
            cached = step.__self__._context.cached_step
            assert type(cached) is CachedLaunches
