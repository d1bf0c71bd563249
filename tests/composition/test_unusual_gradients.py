"""Test modifiers with gradients that are not finite, large, 0 or absent, and with a rate of 0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from composition import by_hand as hand
from composition.modifier_cases import CASES, bases_to_test, composed_and_by_hand
from composition.training import (
    BOUND,
    LOWERINGS,
    STEPS,
    difference,
    give_gradients,
    parameters,
    params_and_lrs,
    two_groups,
)
from interpreter import outside_interpreter, run_inside

from optgen import optim, use_lowering
from optgen.compositions import compose, modifier
from optgen.spec.composition.check_parts import CompositionError
from optgen.spec.errors import SpecError


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__, "fused_triton")


def spoil(params: list[torch.Tensor], index: int, value: float) -> None:
    """Set one element of a gradient."""
    grad = params[index].grad
    assert grad is not None
    grad.view(-1)[1] = value


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("base", bases_to_test("AdamW", "RMSprop", "Adamax"))
def test_steps_with_nonfinite_gradients_are_skipped(base: str, lowering: str) -> None:
    """Even in a skipped first step, no state and no count may change."""
    spoiled_steps = {0: (2, float("nan")), 3: (0, float("inf")), 4: (3, -float("inf"))}
    optimizer, by_hand = composed_and_by_hand("skip_nonfinite", base)
    params = [param for param, _ in params_and_lrs(optimizer)]
    for seed in range(STEPS):
        for each in (params, by_hand.params):
            give_gradients(each, seed)
            if seed in spoiled_steps:
                spoil(each, *spoiled_steps[seed])
        with use_lowering(lowering):
            optimizer.step()
        by_hand.step()
        assert difference(params, by_hand.params) < BOUND
    assert {optimizer.state[param]["skipped_steps"].item() for param in params} == {3}


@pytest.mark.parametrize("base", ["SGD", "NAdam", "RAdam", "ASGD"])
def test_skip_nonfinite_refuses_rules_that_count_steps_on_the_host(base: str) -> None:
    """Only the device knows which steps were skipped."""
    with pytest.raises((CompositionError, SpecError)):
        compose(base.lower(), modifier("skip_nonfinite"))


@pytest.mark.parametrize(("dtype", "large"), [(torch.float32, 1e25), (torch.float64, 1e200)])
def test_large_gradients_are_not_skipped(dtype: torch.dtype, large: float) -> None:
    cls: Any = compose(optim.Adamax, modifier("skip_nonfinite"))
    param = torch.ones(3, dtype=dtype, requires_grad=True)
    param.grad = torch.full_like(param, large)
    cls([param]).step()
    assert (param < 1).all()


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_parameters_without_a_gradient_stay_unchanged(lowering: str) -> None:
    """They also add nothing to the norm of all gradients."""
    modifiers = [modifier("clip_norm")(1.0), modifier("decoupled_decay")(0.1)]
    optimizer: Any = compose(optim.AdamW, *modifiers)(two_groups(parameters()), weight_decay=0)
    params = [param for param, _ in params_and_lrs(optimizer)]
    torchs = torch.optim.AdamW(two_groups(parameters()), weight_decay=0.1)
    by_hand = hand.ClipNorm(torchs)
    for seed in range(STEPS):
        for each in (params, by_hand.params):
            give_gradients(each, seed)
            each[seed % 4].grad = None
        with use_lowering(lowering):
            optimizer.step()
        by_hand.step()
        assert difference(params, by_hand.params) < BOUND


def test_hyperball_with_a_learning_rate_of_zero_moves_nothing() -> None:
    """A warm-up may begin with a learning rate of 0."""
    optimizer: Any = compose(optim.Adam, modifier("hyperball"))(parameters(), lr=0.0)
    give_gradients((param for param, _ in params_and_lrs(optimizer)), 0)
    optimizer.step()
    assert difference((param for param, _ in params_and_lrs(optimizer)), parameters()) < BOUND


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("name", sorted({*CASES} - {"hyperball", "fixed_decay"}))
def test_a_learning_rate_of_zero_moves_nothing(name: str) -> None:
    shapes = CASES[name].shapes
    optimizer: Any = compose(optim.AdamW, modifier(name))(parameters(shapes), lr=0.0)
    for seed in range(6):
        give_gradients((param for param, _ in params_and_lrs(optimizer)), seed)
        optimizer.step()
    found = (param for param, _ in params_and_lrs(optimizer))
    assert difference(found, parameters(shapes)) < BOUND


@pytest.mark.one_case_in(5)
@pytest.mark.parametrize("name", sorted({*CASES} - {name for name in CASES if "decay" in name}))
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_parameters_of_zeros_stay_finite(name: str, lowering: str) -> None:
    """Gradients are zeros or ones; some parameters have no element or one."""
    params = [torch.zeros(shape, requires_grad=True) for shape in ((3, 4), (), (0, 3), (1,), (5,))]
    optimizer: Any = compose(optim.AdamW, modifier(name))(params)
    for size in (0, 1, 0):
        for param in params:
            param.grad = size * torch.ones_like(param)
        with use_lowering(lowering):
            optimizer.step()
        assert all(bool(param.isfinite().all()) for param in params)
