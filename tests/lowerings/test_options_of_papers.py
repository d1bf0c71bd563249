"""Test options of published optimizers, each against a step written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from lowerings.capture import capture_on_cpu
from lowerings.papers import random_tensors
from spec_files import optimizer_class
from torch import Tensor

from optgen import use_lowering
from optgen.optim import (
    APOLLO,
    CAME,
    KLSOAP,
    SOAP,
    AdafactorHF,
    Dion,
    GaLore,
    Kron,
    OneSidedShampoo,
    Shampoo,
)

LOWERINGS = ("forloop", "foreach", "fused_cpu")
STEPS = 8
State = dict[str, Any]
ListStep = Callable[[list[Tensor], list[Tensor], State], list[Tensor]]


def parameters() -> list[Tensor]:
    """Return parameters of several shapes; one of them is all zeros."""
    params = random_tensors(100)
    return [*params[:-1], torch.zeros_like(params[-1])]


def ratio(p: Tensor, norm: Tensor, limit: float = math.inf) -> Tensor | float:
    """Return the parameter's norm over another: at most `limit`, and 1 if one of them is zero."""
    return min(1.0 if 0 in (p.norm(), norm) else (p.norm() / norm).item(), limit)


def adam(g: Tensor, state: State) -> Tensor:
    """Return Adam's update, without the learning rate."""
    state["t"] = t = state.get("t", 0) + 1
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
    state["v"] = 0.999 * state.get("v", 0) + 0.001 * g * g
    return state["m"] / (1 - 0.9**t) / ((state["v"] / (1 - 0.999**t)).sqrt() + 1e-6)


def lamb_without_decay(p: Tensor, g: Tensor, state: State) -> Tensor:
    return p - 0.1 * adam(g, state)


def adapted_lamb(p: Tensor, g: Tensor, state: State) -> Tensor:
    u = adam(g, state)
    return p - 0.1 * ratio(p, u.norm()) * u


def clipped_lamb(p: Tensor, g: Tensor, state: State) -> Tensor:
    u = adam(g, state) + 0.2 * p
    return p - 0.1 * ratio(p, u.norm(), limit=1) * u


def lars_without_decay(p: Tensor, g: Tensor, state: State) -> Tensor:
    state["b"] = 0.9 * state["b"] + 0.8 * g if "b" in state else g
    return p - 0.1 * state["b"]


def adapted_lars(p: Tensor, g: Tensor, state: State) -> Tensor:
    return p - 0.1 * lars_trust_ratio(p, g, 0.0) * g


def clipped_lars(p: Tensor, g: Tensor, state: State) -> Tensor:
    return p - 1e-4 * min(lars_trust_ratio(p, g, 0.2) / 1e-4, 1) * (g + 0.2 * p)


def lars_trust_ratio(p: Tensor, g: Tensor, decay: float) -> float:
    """Return the trust ratio of LARS."""
    if 0 in (p.norm(), g.norm()):
        return 1.0
    return (1e-3 * p.norm() / (g.norm() + decay * p.norm() + 1e-8)).item()


ALWAYS_ADAPT = {"lr": 0.1, "weight_decay": 0.0, "always_adapt": True}
CASES_OF_ONE_PARAMETER: dict[
    str, tuple[str, Callable[[Tensor, Tensor, State], Tensor], dict[str, Any]]
] = {
    "lamb, no decay": ("lamb", lamb_without_decay, {"lr": 0.1, "weight_decay": 0.0}),
    "lamb, always": ("lamb", adapted_lamb, ALWAYS_ADAPT),
    "lamb, clipped": ("lamb", clipped_lamb, {"lr": 0.1, "weight_decay": 0.2, "trust_clip": True}),
    "lars, no decay": (
        "lars",
        lars_without_decay,
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.2},
    ),
    "lars, always": ("lars", adapted_lars, ALWAYS_ADAPT),
    "lars, clipped": ("lars", clipped_lars, {"lr": 1e-4, "weight_decay": 0.2, "trust_clip": True}),
}
"""Rules that step each parameter by itself, each with options and the step by hand."""


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", CASES_OF_ONE_PARAMETER)
def test_a_step_with_an_option_equals_the_step_by_hand(name: str, lowering: Any) -> None:
    spec, step_of, options = CASES_OF_ONE_PARAMETER[name]

    def steps(params: list[Tensor], grads: list[Tensor], state: State) -> list[Tensor]:
        states = state.setdefault("states", [{} for _ in params])
        return list(map(step_of, params, grads, states))

    assert_steps_equal(spec, steps, options, lowering)


def prodigy(beta3: float, decay: float, bias: bool, safe: bool) -> ListStep:
    """Return Prodigy's step with d0 = 1e-3 and a decay that is added to gradients."""

    def step(params: list[Tensor], grads: list[Tensor], state: State) -> list[Tensor]:
        starts, d = state.setdefault("p0", params), state.get("d", 1e-3)
        state["k"] = k = state.get("k", 0) + 1
        rate = d * 0.5 * (math.sqrt(1 - 0.999**k) / (1 - 0.9**k) if bias else 1)
        grads = [g + decay * p for g, p in zip(grads, params, strict=True)]
        ms, vs, ss = (state.get(name, [0] * len(params)) for name in "mvs")
        dot = sum((g * (x - p)).sum() for g, x, p in zip(grads, starts, params, strict=True))
        state["r"] = beta3 * state.get("r", 0) + d / 1e-3 * rate * dot
        state["m"] = [0.9 * m + 0.1 * d * g for m, g in zip(ms, grads, strict=True)]
        state["v"] = [0.999 * v + 0.001 * d**2 * g**2 for v, g in zip(vs, grads, strict=True)]
        share = d / 1e-3 * (d if safe else rate)
        state["s"] = [beta3 * s + share * g for s, g in zip(ss, grads, strict=True)]
        length = sum(s.abs().sum() for s in state["s"])
        state["d"] = max(d, (state["r"] / length).item())
        moments = zip(params, state["m"], state["v"], strict=True)
        return [p - rate * m / (v.sqrt() + state["d"] * 1e-8) for p, m, v in moments]

    return step


def dadapt(decay: float, bias: bool) -> ListStep:
    """Return D-Adapt Adam's step with d0 = 1e-3 and a decay that is added to gradients."""
    root = math.sqrt(0.999)

    def step(params: list[Tensor], grads: list[Tensor], state: State) -> list[Tensor]:
        state["k"] = k = state.get("k", 0) + 1
        d, zeros = state.get("d", 1e-3), [0 * p for p in params]
        rate = d * 0.5 * (math.sqrt(1 - 0.999**k) / (1 - 0.9**k) if bias else 1)
        grads = [g + decay * p for g, p in zip(grads, params, strict=True)]
        ms, vs, ss = (state.get(name, zeros) for name in "mvs")
        lists = zip(grads, ss, vs, strict=True)
        dot = sum((g * s / (v.sqrt() + 1e-8)).sum().item() for g, s, v in lists)
        state["r"] = root * state.get("r", 0) + (1 - root) * rate * dot
        state["m"] = [0.9 * m + 0.1 * rate * g for m, g in zip(ms, grads, strict=True)]
        state["v"] = [0.999 * v + 0.001 * g**2 for v, g in zip(vs, grads, strict=True)]
        state["s"] = [root * s + (1 - root) * rate * g for s, g in zip(ss, grads, strict=True)]
        length = sum(s.abs().sum().item() for s in state["s"])
        state["d"] = max(d, state["r"] / ((1 - root) * length))
        moments = zip(params, state["m"], state["v"], strict=True)
        return [p - m / (v.sqrt() + 1e-8) for p, m, v in moments]

    return step


D0 = {"lr": 0.5, "d0": 1e-3}
COUPLED = {**D0, "weight_decay": 0.1, "decouple": False}
BIAS_CORRECTION = {"use_bias_correction": True}
ROOT_OF_BETA2 = math.sqrt(0.999)
CASES_WITH_SHARED_NUMBERS: dict[str, tuple[ListStep, dict[str, Any]]] = {
    "prodigy, default": (prodigy(ROOT_OF_BETA2, 0.0, False, False), D0),
    "prodigy, coupled": (prodigy(0.9, 0.1, False, False), COUPLED | {"beta3": 0.9}),
    "prodigy, safe": (
        prodigy(ROOT_OF_BETA2, 0.0, True, True),
        D0 | BIAS_CORRECTION | {"safeguard_warmup": True},
    ),
    "dadapt_adam, default": (dadapt(0.0, False), D0),
    "dadapt_adam, coupled": (dadapt(0.1, True), COUPLED | BIAS_CORRECTION),
}
"""Rules that share numbers between parameters, each with options and the step by hand."""


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", CASES_WITH_SHARED_NUMBERS)
def test_a_step_with_shared_numbers_equals_the_step_by_hand(name: str, lowering: Any) -> None:
    steps, options = CASES_WITH_SHARED_NUMBERS[name]
    assert_steps_equal(name.partition(",")[0], steps, options, lowering)


def assert_steps_equal(spec: str, steps: ListStep, options: dict[str, Any], lowering: Any) -> None:
    """Compare the parameters after steps of a spec with those after steps by hand."""
    expected, state = parameters(), dict[str, Any]()
    params = [p.clone() for p in expected]
    optimizer = optimizer_class(spec)(params, **options)
    for number in range(STEPS):
        grads = random_tensors(number)
        expected = steps(expected, grads, state)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.clone()
        with use_lowering(lowering):
            optimizer.step()
    for param, expected_param in zip(params, expected, strict=True):
        torch.testing.assert_close(param, expected_param, rtol=1e-11, atol=1e-13)


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("cls", [SOAP, KLSOAP])
def test_covariances_decay_by_the_second_beta_by_default(cls: Any) -> None:
    """The authors' default is shampoo_beta=-1, which stands for the second beta."""

    def param_after_training(**options: Any) -> Tensor:
        param = random_tensors(100)[1][:3, :3].clone()
        optimizer = cls([param], **options)
        for step in range(15):
            param.grad = random_tensors(step)[1][:3, :3].clone()
            optimizer.step()
        return param

    by_default = param_after_training(betas=(0.9, 0.7))
    assert torch.equal(by_default, param_after_training(betas=(0.9, 0.7), shampoo_beta=0.7))
    assert not torch.equal(by_default, param_after_training(betas=(0.9, 0.7), shampoo_beta=0.9))


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("form", [*LOWERINGS, "capturable", "differentiable"])
@pytest.mark.parametrize("cls", [AdafactorHF, CAME])
def test_a_zero_gradient_in_float32_moves_nothing(cls: Any, form: Any) -> None:
    """In float32, the product of the moments of a row and a column could be 0, and the step NaN."""
    param = torch.ones(3, 4)
    optimizer = cls([param], **({} if form in LOWERINGS else {form: True}))
    for _ in range(3):
        param.grad = torch.zeros(3, 4)
        contexts = {"capturable": capture_on_cpu(), "differentiable": nullcontext()}
        with contexts[form] if form in contexts else use_lowering(form):
            optimizer.step()
    assert torch.equal(param, torch.ones(3, 4))


COUNTS: tuple[tuple[Any, str], ...] = (
    *((Kron, "update_every"), (Kron, "seed"), (APOLLO, "rank"), (APOLLO, "update_proj_gap")),
    *((APOLLO, "seed"), (GaLore, "rank"), (GaLore, "update_proj_gap"), (Dion, "rank")),
    *((SOAP, "precondition_frequency"), (KLSOAP, "precondition_frequency")),
    *((OneSidedShampoo, "every"), (Shampoo, "update_freq"), (Dion, "seed")),
)


@pytest.mark.parametrize(("cls", "name"), COUNTS)
def test_counts_must_be_whole_numbers(cls: Any, name: str) -> None:
    cls([torch.ones(3, 3)], **{name: 2})
    with pytest.raises(ValueError, match=r"2\.5"):
        cls([torch.ones(3, 3)], **{name: 2.5})
