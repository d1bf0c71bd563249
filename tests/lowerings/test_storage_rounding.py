"""Test rules that round to their parameter's dtype, in every lowering."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, outside_interpreter, run_inside
from lowerings.oracle_steps import random_tensors, steps_beside_the_oracle
from parity.cases import LOWERINGS
from spec_files import spec_file
from torch import Tensor

import optgen
from optgen import use_lowering
from optgen.spec import Spec

FORMS = LOWERINGS if INTERPRETED else (*LOWERINGS, "differentiable", "capturable")
NARROW_DTYPES = (torch.bfloat16, torch.float16)
DTYPES = (*NARROW_DTYPES, torch.float32, torch.float64)
KAHAN = spec_file("kahan_adamw")

ROUNDINGS = '''from optgen.spec import *

@optimizer()
def Roundings(p, g, /, a=state("a"), b=state("b"), c=state("c"), *, lr=hyper(0.01)):
    """Three roundings of one value."""
    x = p - lr * g
    a = rounded(x)
    b = rounded_down(x)
    c = rounded_up(x)
    p = where(a < b or c < a, g, x)  # the condition never holds
'''
ONE_ROUNDING = '''from optgen.spec import *

@optimizer()
def Step(p, g, /, *, lr=hyper(0.5)):
    """One rounding."""
    p = {word}(p - lr * g)
'''
BEYOND = '''from optgen.spec import *

@optimizer()
def Beyond(p, g, /, a=state("a"), b=state("b"), *, large=hyper(1e5), small=hyper(1e-9)):
    """Numbers beyond the largest of a dtype, and its subnormal numbers."""
    x, y = clamp(p, -1.7, 1.7) * large, clamp(g, -2, 2) * small
    a, b = rounded_down(x), rounded_up(y)
    p = where(x < a or b < y, g, rounded(x + y))  # the condition never holds
'''


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_kahan_adamw_steps_as_its_rule(dtype: torch.dtype, form: str) -> None:
    eps = torch.finfo(dtype).eps
    for step in steps_beside_the_oracle(KAHAN, form, dtype, lr=1e-3, weight_decay=0.1):
        lost, expected_lost = (
            s["compensation"].double() for s in (step.state, step.expected_state)
        )
        found, expected = step.param.double() + lost, step.expected_param + expected_lost
        # Near a tie, the parameter may round to the other side. Then the compensation differs by
        # as much, so their sum does not.
        bound = 4 * eps * expected_lost.abs().maximum(lost.abs()) + 2e-7 * expected.abs()
        bound += 2 * eps * torch.finfo(dtype).tiny + 1e-9
        assert bool(((found - expected).abs() <= bound).all())
        assert (step.param.double() == step.expected_param).double().mean() > 0.99 or eps < 1e-3
        for key in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(
                step.state[key].double(), step.expected_state[key], rtol=1.01 * eps, atol=1e-7
            )


@pytest.mark.parametrize("form", FORMS)
def test_values_round_to_the_dtype_of_the_parameter_not_of_the_gradient(form: str) -> None:
    steps = steps_beside_the_oracle(KAHAN, form, torch.bfloat16, grad_dtype=torch.float32)
    for step in steps:
        assert step.param.dtype == torch.bfloat16
        assert (step.param.double() == step.expected_param).double().mean() > 0.99


def plain_kahan_adamw(param: Tensor, grads: list[Tensor], lr: float, decay: float) -> Tensor:
    """Return a 16-bit parameter after AdamW with compensated summation.

    Written as optimi has it, with float32 arithmetic between loads and stores.
    """
    dtype = param.dtype
    m, v, compensation = (torch.zeros_like(param) for _ in range(3))
    for count, grad in enumerate(grads, 1):
        g, w = grad.float(), param.float()
        mean = m.float() * 0.9 + g * 0.1
        square = v.float() * 0.999 + g * g * 0.001
        root = (square / (1 - 0.999**count)).sqrt() + 1e-8
        change = compensation.float() - lr * (mean / (1 - 0.9**count) / root) - lr * decay * w
        param = (w + change).to(dtype)
        lost = change + (w - param.float())
        m, v, compensation = mean.to(dtype), square.to(dtype), lost.to(dtype)
    return param


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("dtype", NARROW_DTYPES)
def test_kahan_adamw_equals_the_published_algorithm(dtype: torch.dtype, lowering: str) -> None:
    start, *grads = random_tensors(21, dtype)
    param = param_after_training(KAHAN, start, grads, lowering, lr=1e-4, weight_decay=0.01)

    plain = plain_kahan_adamw(start, grads, 1e-4, 0.01)

    equal_fraction = (param == plain).double().mean()
    assert equal_fraction > 0.98
    torch.testing.assert_close(param, plain, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_kahan_adamw_adds_up_what_bfloat16_loses(lowering: str) -> None:
    """Each step is a twentieth of the distance to the next number, so torch's AdamW never moves."""
    start, grad = torch.ones(70).bfloat16(), torch.ones(70).bfloat16()
    param = param_after_training(KAHAN, start, [grad] * 120, lowering, lr=2e-4, weight_decay=0.0)

    plain = torch.optim.AdamW(
        [unchanged := start.clone().requires_grad_()], lr=2e-4, weight_decay=0.0
    )
    for _ in range(120):
        unchanged.grad = grad
        plain.step()

    assert torch.equal(unchanged.detach(), start)
    assert bool(((param.double() - (1 - 120 * 2e-4)).abs() <= 2**-8).all())


def param_after_training(
    source: Any, start: Tensor, grads: list[Tensor], lowering: str, **hypers: Any
) -> Tensor:
    """Return the parameter after one step for each gradient."""
    param = torch.nn.Parameter(start.clone())
    optimizer = optgen.load(source)([param], **hypers)
    for grad in grads:
        param.grad = grad
        with use_lowering(lowering):
            optimizer.step()
    return param.detach()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_three_roundings_equal_those_of_the_oracle(dtype: torch.dtype, form: str) -> None:
    """The states hold numbers of the dtype on both sides of a value, and the nearer of the two."""
    spec = Spec("Roundings", ROUNDINGS, "roundings.py", 1)
    for step in steps_beside_the_oracle(spec, form, dtype, num_steps=2):
        nearest, down, up = (step.state[key].double() for key in "abc")
        assert bool(((nearest == down) | (nearest == up)).all())
        for key in "abc":
            found, expected_value = step.state[key].double(), step.expected_state[key]
            if dtype in NARROW_DTYPES:
                assert (found == expected_value).double().mean() > 0.999
            eps = torch.finfo(dtype).eps
            atol = 8 * min(eps, torch.finfo(torch.float32).eps)  # p and lr * g may cancel
            torch.testing.assert_close(found, expected_value, rtol=2 * eps, atol=atol)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", NARROW_DTYPES)
def test_numbers_out_of_range_round_as_in_the_oracle(dtype: torch.dtype, form: str) -> None:
    spec = Spec("Beyond", BEYOND, "beyond.py", 1)
    large, small = {torch.bfloat16: (2e38, 1e-39), torch.float16: (1e5, 1e-7)}[dtype]
    (step,) = steps_beside_the_oracle(spec, form, dtype, num_steps=1, large=large, small=small)
    assert bool((step.state["a"] == torch.finfo(dtype).max).any())
    assert bool(step.state["a"].isneginf().any())
    pairs = [(step.state[key], step.expected_state[key]) for key in "ab"]
    for found, expected_value in (*pairs, (step.param, step.expected_param)):
        # The tiniest products are 0 in float32, but not in float64.
        assert (found.double() == expected_value).double().mean() > 0.97
        assert torch.equal(found.isinf(), expected_value.isinf())


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_roundings_keep_nan_and_infinity(lowering: str) -> None:
    spec = Spec("Roundings", ROUNDINGS, "roundings.py", 1)
    start = torch.tensor([math.nan, math.inf, -math.inf, 1.0] * 9).bfloat16()
    param = torch.nn.Parameter(start.clone())
    optimizer = optgen.load(spec)([param], lr=0.0)
    param.grad = torch.zeros_like(start)
    with use_lowering(lowering):
        optimizer.step()
    for value in (param.detach(), *(optimizer.state[param][key] for key in "abc")):
        torch.testing.assert_close(value, start, rtol=0, atol=0, equal_nan=True)


@outside_interpreter
@pytest.mark.parametrize("word", ["rounded", "rounded_down", "rounded_up"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_derivative_of_a_rounding_is_one(dtype: torch.dtype, word: str) -> None:
    spec = Spec("Step", ONE_ROUNDING.replace("{word}", word), "step.py", 1)
    start, grad = torch.tensor([1.0, -2.5, math.inf, 0.0]).to(dtype), torch.ones(4).to(dtype)
    param, weights = start.clone(), torch.arange(4.0)
    optimizer = optgen.load(spec)([param], lr=0.3, differentiable=True)
    param.grad = grad.requires_grad_()
    optimizer.step()
    (param * weights).nan_to_num(0.0, 0.0).sum().backward()

    assert grad.grad is not None
    expected = (-0.3 * weights * (param.isfinite())).to(dtype)
    torch.testing.assert_close(grad.grad, expected)
    assert bool(param[2].isinf())
