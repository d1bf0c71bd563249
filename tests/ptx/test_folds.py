"""Test that compiled kernels fold partial sums: on an emulated device, with small chunks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from interpreter import outside_interpreter
from torch import Tensor

pytest.importorskip("triton")

from fuzz.build import BuiltRule, load
from fuzz.trial import Setting, StepCounts, run
from lowerings.phased_rules import RAGGED
from small_folds import small_folds

from benchmarks.triton_catalogue import classes
from optgen.runtime.fused_triton import bucket, launch_options
from optgen.runtime.fused_triton.folds import FOLD
from ptx import mutants
from ptx.emulate import Device, emulated
from ptx.mutants import MutantsOfKernels
from ptx.situations import Situation, accepts, rule_of, trained

pytestmark = outside_interpreter

SHAPES = ((5200,), (5,), (40, 300), (7, 20, 150), (700, 3, 3))
"""Six blocks of 1024 numbers; 9 tiles of a matrix, 28 of seven matrices; six groups of matrices."""
BLOCK = 128
KERNELS: dict[str, list[str]] = {
    "LAMB": ["lamb_fold1"],
    "Adafactor": [
        "adafactor_factored_fold1",
        "adafactor_factored_fold2",
        "adafactor_not_factored_fold1",
    ],
    "CAME": ["came_fold2"],
    "Ragged": [
        "random_factored_fold1",
        "random_factored_fold2",  # of partial sums and maxima of groups of matrices
        "random_factored_fold3",
        "random_not_factored_fold1",
        "random_not_factored_fold2",
    ],
}


def rule(name: str) -> BuiltRule:
    """Return a rule of the catalogue, or the rule with reductions of every kind."""
    return load(RAGGED) if name == "Ragged" else rule_of(name)


@pytest.mark.one_case_in(4, thorough=2)
@pytest.mark.parametrize("name", KERNELS)
def test_steps_with_folded_sums_are_those_of_the_oracle(name: str) -> None:
    counts, cls = StepCounts(), rule(name).cls
    shapes = tuple(shape for shape in SHAPES if accepts(cls, shape))
    with small_folds(), emulated() as device:
        findings = run(rule(name), Setting({}, shapes, "float64"), ("fused_triton",), counts)
    assert [finding.message for finding in findings] == []
    assert counts.compared
    assert sorted(each for each in device.launches if "_fold" in each) == KERNELS[name]


@pytest.mark.one_case_in(6, thorough=3)
@pytest.mark.parametrize("name", ["LAMB", "Adafactor", "CAME"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_folds_need_no_order_of_blocks(name: str, dtype: torch.dtype) -> None:
    situation = Situation(dtype, SHAPES[:3], is_scaled=True)
    first, second = (on_device(classes()[name], situation, seed) for seed in (1, 1000))
    assert all(map(torch.equal, first, second))


def on_device(cls: Any, situation: Situation, seed: int) -> list[Tensor]:
    with small_folds(), emulated(Device(seed)) as device:
        params, states = trained(cls, situation, "fused_triton")
    assert any("_fold" in each for each in device.launches)
    return params + states


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a block of a sweep have BLOCK elements."""

    def options(*arguments: Any) -> dict[str, Any]:
        return launch_options.options(*arguments) | {"BLOCK": BLOCK, "TAIL": BLOCK}

    monkeypatch.setattr(bucket, "options", options)


def test_chunks_of_the_real_size_are_those_of_the_oracle(small_blocks: None) -> None:
    """A tensor of two chunks: the first is whole, and the second nearly so."""
    setting = Setting({}, ((9,), (2020 * BLOCK - 3,)), "float64")
    with small_folds(FOLD), emulated() as device:
        findings = run(rule_of("LAMB"), setting, ("fused_triton",))
    assert [finding.message for finding in findings] == []
    assert device.launches["lamb_fold1"]


@pytest.mark.one_case_in(3, thorough=1)
@pytest.mark.parametrize(
    ("mutation", "least", "harmless"),
    [(mutants.without_barrier, 2, 0), (mutants.without_guard, 8, 2), (mutants.shifted, 20, 0)],
)
def test_faults_in_a_fold_are_found(
    mutation: mutants.Mutation, least: int, harmless: int, small_blocks: None
) -> None:
    """Without their masks, all threads store a sum, or what a warp has of it: the same number."""
    mutated = MutantsOfKernels(mutation, ("lamb_fold1",))
    situation = Situation(torch.float32, ((9,), (2020 * BLOCK,)))
    with small_folds(FOLD), emulated(Device(3, mutated.run)):
        trained(classes()["LAMB"], situation, "fused_triton")
    executed = [each for each in mutated.outcomes["lamb_fold1"] if each.is_executed]
    unnoticed = [each.instruction for each in executed if not each.is_noticed]
    assert len(executed) >= least
    assert len(unnoticed) == harmless, [each.text for each in unnoticed]
    assert all(each.name.startswith("st.") for each in unnoticed)
