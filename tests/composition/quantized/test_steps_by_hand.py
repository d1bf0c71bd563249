"""Test that steps equal those of optimizers whose states the test rounds to 8 bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from composition.quantized.eight_bits import (
    MIN_ELEMENTS,
    SHAPES,
    STEPS,
    decoded,
    quantized_class,
    round_states,
    step,
    train,
)
from composition.training import LOWERINGS, difference, give_gradients, parameters
from interpreter import outside_interpreter, run_inside

import optgen
from optgen import compose, modifiers, optim
from optgen.runtime.tensors.quantized import QuantizedTensor
from optgen.spec import Spec

LION = '''
from optgen.spec import hyper, optimizer, sign, state

@optimizer(paper="https://arxiv.org/abs/2302.06675")
def Lion(
    p, g, /, m=state("exp_avg", dtype="8bit", block=64, min_elements=100),
    *, lr=hyper(1e-3, ge=0), betas=hyper((0.9, 0.99), ge=0, lt=1),
):
    """Step by the sign of a mean of gradients (Chen et al., 2023)."""
    beta1, beta2 = betas
    p = p - lr * sign(beta1 * m + (1 - beta1) * g)
    m = beta2 * m + (1 - beta2) * g
'''


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__, "fused_triton")


BASES: dict[str, dict[str, Any]] = {
    "AdamW": {"lr": 1e-2, "amsgrad": True},
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
}
CASES = [
    ("AdamW", "dynamic"),
    ("AdamW", "linear"),
    ("SGD", "dynamic"),
    ("AdamW", "e4m3"),
    ("SGD", "e4m3"),
    ("AdamW", "dynamic4"),
    ("SGD", "dynamic4"),
]


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize(("base", "code_map"), CASES)
def test_steps_equal_those_with_states_rounded_by_hand(
    base: str, code_map: str, lowering: str
) -> None:
    """Torch's optimizer takes each step, then the test rounds the states."""
    params, theirs = parameters(SHAPES), parameters(SHAPES)
    optimizer = quantized_class(getattr(optim, base), code_map)(params, **BASES[base])
    by_hand = getattr(torch.optim, base)(theirs, **BASES[base])
    for seed in range(STEPS):
        step(optimizer, params, seed, lowering)
        give_gradients(theirs, seed)
        by_hand.step()
        for states in by_hand.state.values():
            round_states(states, code_map)
        assert difference(params, theirs) < 1e-6
    for param, other in zip(params, theirs, strict=True):
        for key, value in by_hand.state[other].items():
            state = optimizer.state[param][key]
            assert key == "step" or isinstance(state, QuantizedTensor) == (param is not params[-1])
            assert difference([decoded(state)], [value]) < 1e-6


@outside_interpreter
@pytest.mark.parametrize("name", ["adamw", "lion"])
def test_8_bit_classes_equal_their_compositions(name: str) -> None:
    """Parameters and states have equal bits."""
    results = []
    for cls in (optim.optimizer_class(f"{name}_8bit"), compose(name, modifiers.quantized())):
        params = parameters(((70, 70), (7,)), torch.float32)
        optimizer: Any = cls(params, weight_decay=0.1)
        for seed in range(STEPS):
            step(optimizer, params, seed)
        states = [*optimizer.state[params[0]].values()]
        assert any(isinstance(state, QuantizedTensor) for state in states)
        saved = optimizer.state_dict()["state"]
        results.append([*params, *(x for each in saved.values() for x in each.values())])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_spec_with_a_state_of_8_bits_by_hand(lowering: str) -> None:
    params = parameters(SHAPES)
    optimizer = optgen.load(Spec("Lion", LION, "lion.py", 1))(params)
    theirs = [param.detach().clone() for param in params]
    means = [torch.zeros_like(param) for param in params]
    for seed in range(STEPS):
        step(optimizer, params, seed, lowering)
        for index, param in enumerate(params):
            assert param.grad is not None
            mean = means[index]
            theirs[index] -= 1e-3 * (0.9 * mean + 0.1 * param.grad).sign()
            mean.mul_(0.99).add_(param.grad, alpha=0.01)
            round_states({"exp_avg": mean}, "dynamic")
        assert difference(params, theirs) < 1e-12


def test_muon_is_fused_and_equals_muon_with_states_rounded_by_hand() -> None:
    shapes = ((40, 33), (20, 6), (5, 3))
    params, theirs = parameters(shapes), parameters(shapes)
    optimizer = quantized_class(optim.Muon)(params)
    plain = compose(optim.Muon, modifiers.state_dtype("float32"))(theirs)
    for seed in range(STEPS):
        give_gradients(params, seed)
        optimizer.step()
        step(plain, theirs, seed)
        for states in plain.state.values():
            round_states(states, "dynamic")
        assert difference(params, theirs) < 1e-6
    assert optgen.explain(optimizer).startswith("group 0: fused C++")


CHAINS_WITH_REDUCTIONS: dict[str, tuple[Any, ...]] = {
    "norm of all parameters": (modifiers.clip_norm(0.5),),
    "norm of each parameter": (modifiers.trust_ratio,),
    "norm and random numbers": (modifiers.clip_norm(0.5), modifiers.stochastic_rounding),
}


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("chain", CHAINS_WITH_REDUCTIONS.values(), ids=CHAINS_WITH_REDUCTIONS)
def test_rules_that_reduce_to_numbers_by_hand(chain: tuple[Any, ...], lowering: str) -> None:
    """Compare with float32 states that the test rounds after each step."""
    shapes = (*SHAPES, (1500,), (3, 401))  # some have several tiles, and a block that is not full
    params, theirs = parameters(shapes), parameters(shapes)
    optimizer = quantized_class(compose("adamw", *chain))(params, lr=1e-2)
    plain = compose("adamw", *chain, modifiers.state_dtype("float32"))(theirs, lr=1e-2)
    for seed in range(STEPS):
        step(optimizer, params, seed, lowering)
        step(plain, theirs, seed, "forloop")
        for states in plain.state.values():
            moments = {key: states[key] for key in ("exp_avg", "exp_avg_sq")}
            round_states(moments, "dynamic")
        assert difference(params, theirs) < 1e-6
    for param, other in zip(params, theirs, strict=True):
        for key in ("exp_avg", "exp_avg_sq"):
            state = optimizer.state[param][key]
            assert isinstance(state, QuantizedTensor) == (param.numel() >= MIN_ELEMENTS)
            assert difference([decoded(state)], [plain.state[other][key]]) < 1e-6


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lowerings_agree_with_a_run_in_float64(dtype: torch.dtype, lowering: str) -> None:
    """Compare with float64. Rounding changes few codes: those of numbers halfway between two."""
    params, exact = parameters(SHAPES, dtype), parameters(SHAPES)
    with torch.no_grad():
        for one, other in zip(params, exact, strict=True):
            other.copy_(one)
    optimizer, exact_optimizer = (quantized_class("adamw")(each) for each in (params, exact))
    for seed in range(STEPS):
        step(optimizer, params, seed, lowering)
        give_gradients(exact, seed)
        for one, other in zip(params, exact, strict=True):
            assert one.grad is not None
            other.grad = one.grad.double()
        exact_optimizer.step()
    assert difference(params, exact) < (1e-2 if dtype == torch.bfloat16 else 1e-4)
    for one, other in zip(params[:3], exact[:3], strict=True):
        for key in ("exp_avg", "exp_avg_sq"):
            codes = optimizer.state[one][key].codes
            exact_codes = exact_optimizer.state[other][key].codes
            assert (codes != exact_codes).float().mean() < 0.01


@outside_interpreter
@pytest.mark.parametrize("foreach", [True, None])
def test_maximize_steps_by_negative_gradients(foreach: bool | None) -> None:
    _, params = train(quantized_class("sgd"), momentum=0.9, maximize=True, foreach=foreach)
    theirs = parameters(SHAPES, torch.float32)
    plain = quantized_class("sgd")(theirs, momentum=0.9, foreach=foreach)
    for seed in range(STEPS):
        give_gradients(theirs, seed)
        for param in theirs:
            assert param.grad is not None
            param.grad.neg_()
        plain.step()
    assert all(map(torch.equal, params, theirs))


@outside_interpreter
def test_scaled_gradients_are_unscaled() -> None:
    params, theirs = parameters(SHAPES, torch.float32), parameters(SHAPES, torch.float32)
    scaled, plain = quantized_class("adamw")(params, fused=True), quantized_class("adamw")(theirs)
    scaled.grad_scale, scaled.found_inf = torch.tensor(4.0), torch.tensor(0.0)
    for seed in range(2):
        give_gradients([*params], seed)
        give_gradients([*theirs], seed)
        for param in params:
            assert param.grad is not None
            param.grad.mul_(4)
        scaled.step()
        plain.step()
    assert all(map(torch.equal, params, theirs))
