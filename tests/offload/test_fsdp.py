"""Test offloaded optimizers of FSDP2's sharded parameters, on two ranks of simulated devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
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
    "leave, summed, clip": {"gradients": "leave", "clip_norm": 0.05, "accumulation": None},
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


@pytest.fixture(scope="module")
def ranks_of_hsdp() -> Iterator[Ranks]:
    """Yield a function that runs others on four ranks."""
    with pair.processes(4) as run:
        yield run


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "backward"])
def test_bits_of_unoffloaded_fsdp(mode: str, ranks: Ranks) -> None:
    _check_bits(mode, ranks)


def test_bits_of_unoffloaded_fsdp_stepped_in_backward(ranks: Ranks) -> None:
    """FSDP2 gives gradients in the backward method of a function of its own."""
    _check_bits("backward", ranks)


def _check_bits(mode: str, ranks: Ranks) -> None:
    """Copies are slow, so that a missing wait would show."""
    settings = {"latency": 1e-3, "jitter": 5e-3, "compute": 1e-5}
    for differ, norms, own_norms, kinds in ranks(sharded.bits, "adamw", settings, MODES[mode]):
        assert not differ
        assert kinds == ["DTensor", "cpu", "cpu"]
        assert norms[: len(own_norms)] == pytest.approx(own_norms, rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["forward, clip", "leave, forward, clip", "backward"])
def test_bits_of_unoffloaded_hsdp(mode: str, ranks_of_hsdp: Ranks) -> None:
    """Two replicas of two shards: each replica steps its own copy, and all have the same norm."""
    settings = {"latency": 1e-3, "jitter": 5e-3, "compute": 1e-5}
    found = ranks_of_hsdp(sharded.bits, "adamw", settings, MODES[mode])
    for differ, norms, own_norms, _ in found:
        assert not differ
        assert norms == found[0][1]
        assert norms[: len(own_norms)] == pytest.approx(own_norms, rel=1e-5)


def test_the_group_refuses_cpu_tensors(ranks: Ranks) -> None:
    """So the tests above show that no CPU collective is called."""
    assert all("a collective on cpu" in text for text in ranks(sharded.group_refuses_the_cpu))


@pytest.mark.thorough
def test_a_forward_pass_that_does_not_wait_on_the_host_is_seen(ranks: Ranks) -> None:
    """FSDP2 gathers weights on a stream that does not wait for the current one."""
    assert all(ranks(sharded.bits_without_waits, 5))


def test_train_and_eval_of_shards(ranks: Ranks) -> None:
    for same in ranks(sharded.bits_of_modes):
        assert same == [True] * 24


def test_a_forward_pass_on_a_device_that_does_not_answer(ranks: Ranks) -> None:
    for text in ranks(sharded.error_of_a_stalled_forward):
        assert "in the stage 'copy of weights to the device', at 0.weight, for 1 s" in text


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("rule", ["adamw", "sgd"])
@pytest.mark.parametrize(("saving", "loading"), [(2, 1), (1, 2), (2, 2)])
def test_distributed_checkpoints(
    rule: str, saving: int, loading: int, ranks: Ranks, tmp_path: Path
) -> None:
    """A training goes on with the bits of the plain composition that loads the same checkpoint."""
    assert ranks(sharded.resumed, rule, str(tmp_path), saving, loading) == [[], []]


@pytest.mark.parametrize("rule", ["lamb", "adafactor"])
def test_rules_that_sum_over_whole_parameters_are_refused(rule: str, ranks: Ranks) -> None:
    for text in ranks(sharded.refusal, rule):
        assert "it is sharded, the rule sums over whole parameters" in text
