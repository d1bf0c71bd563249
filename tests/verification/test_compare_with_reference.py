"""Test that comparisons pass for torch.optim and rules with 8-bit states, and notice errors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from optgen.optim._published import PUBLISHED
from optgen.verification import compare_with_reference, references
from optgen.verification.case import Case
from optgen.verification.compare_with_reference import (
    larger_error,
    max_difference,
    run_case,
    runnable_lowerings,
)
from optgen.verification.packages import TORCH_CASES as TORCH
from optgen.verification.packages import class_of
from optgen.verification.references import SOURCES
from optgen.verification.references.eight_bits import CASES as EIGHT_BITS

COMBINATIONS = [
    (case, lowering)
    for case in (*TORCH, *EIGHT_BITS)
    for lowering in runnable_lowerings(class_of(case.name))
    if lowering != "fused_triton"
]
(LION,) = (case for case in references.CASES if case.name == "lion")


@pytest.mark.parametrize(("case", "lowering"), COMBINATIONS, ids=str)
def test_a_lowering_agrees_with_its_reference(case: Case, lowering: str) -> None:
    assert run_case(case, class_of(case.name), lowering).max_error <= case.bound


def test_every_published_optimizer_has_a_rule_and_its_source() -> None:
    names = {case.name for case in references.CASES}

    assert names == {*PUBLISHED, "row_wise_adagrad"}
    assert names == {*SOURCES}


@pytest.mark.parametrize("options", [{"lr": 0.01 + 1e-9}, {"betas": (0.9, 0.99 + 1e-6)}], ids=str)
def test_a_rule_with_other_options_is_noticed(options: dict[str, object]) -> None:
    """A rate or a decay that is a little off misses the bound."""
    (case,) = (each for each in references.CASES if each.name == "grams")
    other_options = {**case.options, "betas": (0.9, 0.999), **options}

    assert (
        run_case(replace(case, options=other_options), class_of("grams"), "foreach").max_error
        > case.bound
    )


def test_each_side_has_the_gradients_at_its_own_parameters() -> None:
    """Parameters that differ a little have different gradients."""
    first = LION.problem.initial_params()
    shifted = [param + 1e-3 for param in first]

    first_gradients, shifted_gradients = (
        LION.problem.gradients(params, 1) for params in (first, shifted)
    )

    assert max_difference(first_gradients, shifted_gradients) > 1e-4


def test_a_gradient_is_that_of_the_loss() -> None:
    params = [param.requires_grad_() for param in LION.problem.initial_params()]

    found = torch.autograd.grad(LION.problem.loss(params, 3), params)

    expected = LION.problem.gradients([param.detach() for param in params], 3)
    assert max_difference(list(found), expected) < 1e-12


def test_a_nan_is_the_largest_difference() -> None:
    nan = math.nan

    assert math.isnan(max_difference([torch.tensor([1.0, nan])], [torch.ones(2)]))
    assert math.isnan(larger_error(larger_error(0.1, nan), 0.2))


def test_a_machine_without_a_compiler_compares_the_other_lowerings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compare_with_reference.compiler, "find", lambda: None)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert runnable_lowerings(class_of("lion")) == ("forloop", "foreach")
    assert runnable_lowerings(class_of("sparse_adam")) == ("forloop",)
    assert runnable_lowerings(class_of("lbfgs")) == ("by_hand",)
