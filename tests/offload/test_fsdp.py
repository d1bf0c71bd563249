"""Test offloaded optimizers of FSDP2's sharded parameters, on two ranks of simulated devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from distributed import pair
from offload import sharded

MODES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "clip": {"clip_norm": 0.05},
    "forward": {"hide": "forward"},
    "forward, clip": {"hide": "forward", "clip_norm": 0.05},
    "leave": {"gradients": "leave", "clip_norm": None, "accumulation": 1},
    "leave, clip": {"gradients": "leave", "clip_norm": 0.05, "accumulation": 1},
    "leave, forward, clip": {
        "gradients": "leave",
        "hide": "forward",
        "clip_norm": 0.05,
        "accumulation": 1,
    },
    "backward": {"gradients": "leave", "hide": "backward", "clip_norm": None},
}
Ranks = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Yield a function that runs others on two ranks, which have a device of their own."""
    with pair.processes(2) as run:
        yield run


@pytest.mark.parametrize("mode", MODES)
def test_bits_of_unoffloaded_fsdp(mode: str, ranks: Ranks) -> None:
    """Copies are slow, so that a missing wait would show."""
    settings = {"latency": 2e-3, "jitter": 0.5, "compute": 2e-4}
    for differ, norms, own_norms, kinds in ranks(sharded.bits, "adamw", settings, MODES[mode]):
        assert not differ
        assert kinds == ["DTensor", "cpu", "cpu"]
        assert norms[: len(own_norms)] == pytest.approx(own_norms, rel=1e-5)


def test_the_group_refuses_cpu_tensors(ranks: Ranks) -> None:
    """So the tests above show that no CPU collective is called."""
    assert all("a collective on cpu" in text for text in ranks(sharded.group_refuses_the_cpu))
