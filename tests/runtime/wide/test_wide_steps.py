"""Test steps of wide rules: equal bits, scalers, failures, capture, autograd, explain."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lowerings.capture import capture_on_cpu
from runtime.wide.oracle import (
    LARGE_SHAPES,
    LOWERINGS,
    ODD_WIDE,
    PRODIGY,
    SPECS_IN_FILES,
    WIDE_OPTIMIZER,
    give_gradients,
    parameters,
    step,
    two_groups,
)
from runtime.wide.rule_texts import WHOLE_MATRICES
from spec_files import spec_file
from spec_texts import spec as spec_text
from torch import Tensor

import optgen
from optgen import explain, use_lowering
from optgen.passes.recognize_rules import why_not_in_triton
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_scaler_divides_gradients_once(lowering: str) -> None:
    scaled, plain = (
        WIDE_OPTIMIZER(two_groups(parameters())),
        WIDE_OPTIMIZER(two_groups(parameters())),
    )
    for seed in range(3):
        give_gradients(plain, seed)
        give_gradients(scaled, seed)
        scaled.grad_scale, scaled.found_inf = torch.tensor(8.0), torch.tensor(float(seed == 1))
        for group in scaled.param_groups:
            for param in group["params"]:
                param.grad *= 8
        with use_lowering(lowering):
            scaled.step()
            if seed != 1:
                plain.step()
    for ours, theirs in zip(scaled.param_groups, plain.param_groups, strict=True):
        for a, b in zip(ours["params"], theirs["params"], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_the_order_of_parameters_changes_no_bits(lowering: str) -> None:
    results = []
    for order in ((0, 1, 2, 3, 4, 5), (4, 2, 5, 0, 3, 1)):
        params = parameters(dtype=torch.float32)
        optimizer = WIDE_OPTIMIZER([params[i] for i in order])
        for seed in range(3):
            for index, param in enumerate(params):
                generator = torch.Generator().manual_seed(10 * seed + index)
                param.grad = torch.randn(param.shape, generator=generator)
            with use_lowering(lowering):
                optimizer.step()
        results.append([param.detach().clone() for param in params])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_number_of_threads_changes_no_bits() -> None:
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            params = parameters((*LARGE_SHAPES, (3000, 1000)), torch.float32)
            optimizer = ODD_WIDE(two_groups(params))
            with use_lowering("fused_cpu"):
                step(optimizer, 1)
                step(optimizer, 2)
            results.append([param.detach().clone() for param in params])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("found_inf", [0.0, 1.0])
def test_a_step_changes_values_unless_a_gradient_is_infinite(found_inf: float) -> None:
    optimizer = PRODIGY(parameters())
    step(optimizer, 1)
    give_gradients(optimizer, 2)
    optimizer.grad_scale = torch.tensor(1.0)
    optimizer.found_inf = torch.tensor(found_inf)
    before = [param.detach().clone() for param in optimizer.param_groups[0]["params"]]
    optimizer.step()
    after = optimizer.param_groups[0]["params"]
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if a.numel()]
    assert all(torch.equal(a, b) is bool(found_inf) for a, b in pairs)
    assert optimizer.param_groups[0]["k"].item() == 2.0 - found_inf


def test_a_failed_step_changes_nothing() -> None:
    params = parameters()
    optimizer = PRODIGY(params)
    step(optimizer, 1)
    before = [param.detach().clone() for param in params]
    give_gradients(optimizer, 2)
    optimizer.state[params[2]]["s"] = torch.zeros(7, dtype=torch.float64)
    with pytest.raises(RuntimeError):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))
    assert optimizer.param_groups[0]["k"].item() == 1.0


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
@pytest.mark.parametrize("name", SPECS_IN_FILES)
def test_the_host_reads_no_number_in_a_captured_step(name: str, lowering: str) -> None:
    cls: Any = optgen.load(spec_file(name))
    optimizer, plain = (
        cls(two_groups(parameters(), cls), capturable=capturable) for capturable in (True, False)
    )
    for seed in range(3):
        give_gradients(optimizer, seed)
        with capture_on_cpu(), use_lowering(lowering):
            optimizer.step()
        step(plain, seed)
    for ours, theirs in zip(optimizer.param_groups, plain.param_groups, strict=True):
        for a, b in zip(ours["params"], theirs["params"], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_gradients_flow_through_a_differentiable_step() -> None:
    """The derivative of a later loss by the first parameter equals finite differences."""

    def later_loss(first: Tensor) -> Tensor:
        params = [first.clone(), *(p.detach() for p in parameters()[1:4])]
        optimizer = ODD_WIDE(params, differentiable=True)
        for param in params:
            param.grad = torch.cos(param * 3)
        optimizer.step()
        return torch.stack([param.square().sum() for param in params]).sum()

    start = parameters()[0]
    assert torch.autograd.gradcheck(later_loss, [start], atol=1e-6)


def test_the_rule_sees_a_parameter_in_the_shape_of_its_view() -> None:
    flat, whole = parameters([(12,), (5,)]), parameters([(12,), (5,)])
    viewed = ODD_WIDE([{"params": flat[:1], "view": (3, 4)}, {"params": flat[1:]}])
    matrix = whole[0].detach().clone().view(3, 4)
    plain = ODD_WIDE([{"params": [matrix]}, {"params": whole[1:]}])
    for seed in range(3):
        step(viewed, seed)
        step(plain, seed)
    assert torch.equal(flat[0].view(3, 4), matrix)
    assert torch.equal(flat[1], whole[1])


def test_a_parameter_that_is_listed_twice_is_refused() -> None:
    param = torch.ones(3, requires_grad=True)
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = ODD_WIDE([param, param])
    param.grad = torch.ones(3)
    with pytest.raises(RuntimeError, match="a parameter is listed twice: list it once"):
        optimizer.step()
    assert param.tolist() == [1.0] * 3


def test_explain_names_the_lowering() -> None:
    assert "fused C++" in str(explain(PRODIGY(parameters())))
    spec = Spec("Whole", WHOLE_MATRICES, "whole.py", 1)
    optimizer: Any = optgen.load(spec)(parameters(((3, 4), (5, 4))))
    reason = "the rule has whole matrices and reduces over several parameters"
    assert reason in str(explain(optimizer))


@pytest.mark.parametrize(
    ("condition", "refused"),
    [("twice > 1", True), ("betas[0]", True), ("lr > 0.01 and not lr == 2", False)],
)
def test_triton_refuses_reductions_in_branches_on_computed_values(
    condition: str, refused: bool
) -> None:
    """The host evaluates the condition before the launches, when it knows only hyperparameters."""
    body = ("twice = 2 * lr", f"if {condition}:", '    g = g / sum(g, over="group")')
    hypers = "lr=hyper(0.1, ge=0), betas=hyper((0.9, 0.5))"
    text = spec_text(*body, "p = p - lr * g * betas[1] - betas[0] * twice * g", hypers=hypers)
    (algorithm,) = read_spec(Spec("made", text, "made.py", 1))
    reason = "the rule reduces over several parameters in a branch on computed values"
    assert why_not_in_triton(algorithm) == (reason if refused else "")
