"""Test that wide rules step as the oracle does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from runtime.wide.oracle import (
    LARGE_SHAPES,
    LOWERINGS,
    ODD_WIDE,
    SHAPES,
    SPECS_IN_FILES,
    WIDE_OPTIMIZER,
    WIDE_SPEC,
    Oracle,
    check_against_oracle,
    give_gradients,
    parameters,
    two_groups,
)
from runtime.wide.rule_texts import SPECS_IN_TEXTS, WHOLE_MATRICES
from spec_files import spec_file

import optgen
from optgen import explain, use_lowering
from optgen.spec import Spec


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("shapes", [SHAPES, LARGE_SHAPES], ids=["small", "large"])
@pytest.mark.parametrize("name", SPECS_IN_FILES)
def test_specs_in_files_step_as_the_oracle(name: str, shapes: Any, lowering: str) -> None:
    check_against_oracle(spec_file(name), lowering, shapes)


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("shapes", [SHAPES, LARGE_SHAPES], ids=["small", "large"])
@pytest.mark.parametrize("name", SPECS_IN_TEXTS)
def test_specs_in_texts_step_as_the_oracle(name: str, shapes: Any, lowering: str) -> None:
    check_against_oracle(SPECS_IN_TEXTS[name], lowering, shapes)


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(
        __file__, "fused_triton and not (large or not_heavy or clip_and_lr) or after_changes"
    )


@inside_interpreter
def test_triton_steps_as_the_oracle_after_changes_of_groups_and_gradients() -> None:
    """A group is added, and gradients come and go: the buckets of a step no longer fit."""
    params = parameters()
    optimizer: Any = optgen.load(SPECS_IN_TEXTS["together"])(params[:3])
    oracle = Oracle(SPECS_IN_TEXTS["together"], optimizer)
    for seed in range(6):
        if seed == 2:
            optimizer.add_param_group({"params": params[3:], "lr": 0.05})
            oracle.values += [(param.detach().clone(), {}) for param in params[3:]]
        give_gradients(optimizer, seed)
        if seed == 4:
            params[1].grad = None
        oracle.step()
        with use_lowering("fused_triton"):
            optimizer.step()
        assert oracle.difference() < 1e-12


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
def test_lists_of_matrices_step_as_the_oracle(lowering: str) -> None:
    """In foreach, matrices of one shape form one list; each contributes to the reductions."""
    spec = Spec("Whole", WHOLE_MATRICES, "whole.py", 1)
    params = parameters(((3, 4), (5, 4), (3, 4), (3, 4)))
    optimizer: Any = optgen.load(spec)([{"params": params[:3]}, {"params": params[3:]}])
    oracle = Oracle(spec, optimizer)
    for seed in range(3):
        give_gradients(optimizer, seed)
        oracle.step()
        with use_lowering(lowering):
            optimizer.step()
    assert oracle.difference() < 1e-12


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize(
    "options",
    [{"heavy": False}, {"clip": 0.3}, {"clip": 0.3, "lr": 1.0}],
    ids=["not_heavy", "only_clip", "clip_and_lr"],
)
def test_groups_may_have_different_options(options: dict[str, Any], lowering: str) -> None:
    groups = two_groups(parameters())
    groups[1] |= options
    optimizer = ODD_WIDE(groups)
    oracle = Oracle("odd_wide", optimizer)
    for seed in range(3):
        give_gradients(optimizer, seed)
        oracle.step()
        with use_lowering(lowering):
            optimizer.step()
    assert oracle.difference() < 1e-12


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_reductions_leave_out_parameters_without_a_gradient(lowering: str) -> None:
    optimizer = WIDE_OPTIMIZER(two_groups(parameters()))
    oracle = Oracle(WIDE_SPEC, optimizer)
    all_params = [p for group in optimizer.param_groups for p in group["params"]]
    for seed in range(4):
        give_gradients(optimizer, seed)
        all_params[seed].grad = None
        all_params[-seed].grad = None
        if seed == 2:
            all_params[0].grad = all_params[1].grad = None  # the whole first group
        oracle.step()
        with use_lowering(lowering):
            optimizer.step()
    assert oracle.difference() < 1e-12


def test_groups_of_different_lowerings_wait_for_one_another() -> None:
    groups = two_groups(parameters())
    groups[0]["foreach"] = False
    optimizer = ODD_WIDE(groups)
    assert all(title in str(explain(optimizer)) for title in ("for-loop", "fused C++"))
    oracle = Oracle("odd_wide", optimizer)
    for seed in range(3):
        give_gradients(optimizer, seed)
        oracle.step()
        optimizer.step()
    assert oracle.difference() < 1e-12


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_gradients_may_have_another_layout_than_parameters(lowering: str) -> None:
    params = [torch.ones(3, 4).double().t().requires_grad_(), *parameters(((4, 3), (5,)))]
    optimizer = WIDE_OPTIMIZER(params)
    oracle = Oracle(WIDE_SPEC, optimizer)
    for seed in range(3):
        give_gradients(optimizer, seed)
        params[1].grad = torch.randn(3, 4).double().t()
        oracle.step()
        with use_lowering(lowering):
            optimizer.step()
    assert oracle.difference() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_parameters_of_several_dtypes_step_as_the_oracle(lowering: str, dtype: torch.dtype) -> None:
    params = parameters(dtype=dtype)
    params[1], params[2] = params[1].detach().float(), params[2].detach().double()
    optimizer = WIDE_OPTIMIZER(two_groups(params), lr=0.01)
    oracle = Oracle(WIDE_SPEC, optimizer)
    give_gradients(optimizer, 1)
    oracle.step()
    with use_lowering(lowering):
        optimizer.step()
    assert oracle.difference() < 8 * torch.finfo(dtype).eps
    assert [group["k"].item() for group in optimizer.param_groups] == [2.0, 2.0]
