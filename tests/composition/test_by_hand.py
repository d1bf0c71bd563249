"""Test that every modifier equals a change by hand around an optimizer of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from composition import by_hand as hand
from composition.modifier_cases import CASES, TESTED_ELSEWHERE, bases_to_test, composed_and_by_hand
from composition.training import (
    BOUND,
    LOWERINGS,
    SHAPES_UP_TO_2D,
    STEPS,
    check_same_path,
    difference,
    give_gradients,
    parameters,
    params_and_lrs,
    two_groups,
)
from interpreter import outside_interpreter, run_inside

from optgen import optim, use_lowering
from optgen.compositions import compose, list_modifiers, modifier

COMBINATIONS = [
    (name, base, lowering)
    for name, case in CASES.items()
    for base in bases_to_test("AdamW", case.second_base, case.third_base)
    for lowering in LOWERINGS
    if lowering != "fused_cpu" or base == "AdamW"  # a kernel takes a second to build
]


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__, "fused_triton")


def test_every_modifier_has_a_case() -> None:
    assert sorted([*CASES, *TESTED_ELSEWHERE, "amsgrad", "zero_grad"]) == list_modifiers()


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("base", bases_to_test("Adam", "AdamW"))
def test_amsgrad_equals_torchs(base: str, lowering: str) -> None:
    ours = compose(getattr(optim, base), modifier("amsgrad"))(two_groups(parameters()))
    theirs = getattr(torch.optim, base)(two_groups(parameters()), amsgrad=True)
    params, expected = (
        [param for param, _ in params_and_lrs(ours)],
        [p for p, _ in params_and_lrs(theirs)],
    )
    for seed in range(STEPS):
        for each in (params, expected):
            give_gradients(each, seed)
        with use_lowering(lowering):
            ours.step()
        theirs.step()
        assert difference(params, expected) < BOUND


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_zero_grad_leaves_gradients_at_zero(lowering: str) -> None:
    ours = compose(optim.AdamW, modifier("zero_grad"))(two_groups(parameters()))
    theirs = optim.AdamW(two_groups(parameters()))
    params, expected = (
        [param for param, _ in params_and_lrs(ours)],
        [p for p, _ in params_and_lrs(theirs)],
    )
    for seed in range(STEPS):
        for each in (params, expected):
            give_gradients(each, seed)
        params[seed % 4].grad = expected[seed % 4].grad = None
        with use_lowering(lowering):
            ours.step()
            theirs.step()
        assert difference(params, expected) < BOUND
        assert all(p.grad is None or not p.grad.any() for p in params)


@outside_interpreter
@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
@pytest.mark.parametrize("name", ["clip_norm", "clip_tensor_norm"])
def test_an_argument_norm_does_not_hide_the_function_norm(name: str, lowering: str) -> None:
    """Scion has an argument `norm`; the modifier calls the function `norm`."""
    arguments, by_hand = CASES[name].arguments, CASES[name].by_hand
    options = {"norm": "Sign", "momentum": 0.5}
    cls: Any = compose("scion", modifier(name)(**arguments))
    theirs = optim.Scion(two_groups(parameters(SHAPES_UP_TO_2D)), **options)
    check_same_path(
        cls(two_groups(parameters(SHAPES_UP_TO_2D)), **options), by_hand(theirs), lowering
    )


@pytest.mark.one_case_in(6)
@pytest.mark.parametrize(("name", "base", "lowering"), COMBINATIONS)
def test_every_modifier_equals_its_change_by_hand(name: str, base: str, lowering: str) -> None:
    optimizer, by_hand = composed_and_by_hand(name, base)
    check_same_path(optimizer, by_hand, lowering)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize(
    ("theirs", "base_and_modifier"),
    [
        (torch.optim.AdamW, ("Adam", "decoupled_decay")),
        (torch.optim.Adam, ("Adam", "coupled_decay")),
        (torch.optim.SGD, ("SGD", "coupled_decay")),
    ],
)
def test_decays_equal_torchs(
    theirs: Any, base_and_modifier: tuple[str, str], lowering: str
) -> None:
    base, name = base_and_modifier
    optimizer: Any = compose(base, modifier(name)(0.1))(two_groups(parameters()))
    torchs = theirs(two_groups(parameters()), weight_decay=0.1)
    check_same_path(optimizer, hand.ByHand(torchs), lowering)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_modifiers_see_the_negative_gradient_if_maximize_is_set(lowering: str) -> None:
    """torch's decay sees the negative gradient, too."""
    modifiers = [modifier("clip_value")(0.3), modifier("coupled_decay")(0.1)]
    optimizer: Any = compose(optim.SGD, *modifiers)(two_groups(parameters()), maximize=True)
    torchs = torch.optim.SGD(two_groups(parameters()), maximize=True, weight_decay=0.1)
    check_same_path(optimizer, hand.ClipValue(torchs), lowering)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", ["centralize", "adaptive_clip"])
def test_convolutions_with_a_view_equal_the_change_by_hand(name: str, lowering: str) -> None:
    """With the view (outputs, -1), a row holds an output's weights, as in the authors' code."""
    case, shapes = CASES[name], ((2, 3, 2), (2, 2, 3))
    cls: Any = compose(optim.AdamW, modifier(name)(**case.arguments))
    groups = [{"params": parameters(shapes), "view": (2, -1)}]
    optimizer = cls(groups, weight_decay=0)
    by_hand = case.by_hand(torch.optim.AdamW(parameters(shapes), weight_decay=0))
    check_same_path(optimizer, by_hand, lowering)


@pytest.mark.parametrize("name", ["centralize", "adaptive_clip"])
def test_more_than_two_axes_need_a_view(name: str) -> None:
    """The authors reduce over all axes but the first; a rule's row is only the last axis."""
    cls: Any = compose(optim.AdamW, modifier(name)(**CASES[name].arguments))
    with pytest.raises(ValueError, match=r"give the shape .*\[2, 2, 3\].* a view of two axes"):
        cls(parameters(((2, 2, 3),)))


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_eval_swaps_the_weights_and_their_average(lowering: str) -> None:
    optimizer, by_hand = composed_and_by_hand("ema", "AdamW")
    check_same_path(optimizer, by_hand, lowering)
    params = [param for param, _ in params_and_lrs(optimizer)]
    weights = [param.detach().clone() for param in params]
    for _ in range(2):
        optimizer.eval()
        assert difference(params, by_hand.averages()) < BOUND
        assert difference((optimizer.state[p]["ema"] for p in params), weights) == 0
    for _ in range(2):
        optimizer.train()
        assert difference(params, weights) == 0
    check_same_path(optimizer, by_hand, lowering, steps=2)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_eval_sets_parameters_to_the_average_of_schedule_free(lowering: str) -> None:
    optimizer, by_hand = composed_and_by_hand("schedule_free", "AdamW")
    check_same_path(optimizer, by_hand, lowering)
    params = [param for param, _ in params_and_lrs(optimizer)]
    optimizer.eval()
    assert difference(params, by_hand.averages) < BOUND
    optimizer.train()
    assert difference(params, by_hand.params) < BOUND
    check_same_path(optimizer, by_hand, lowering, steps=2)


@pytest.mark.parametrize("name", ["ema", "schedule_free"])
def test_a_step_in_eval_mode_is_refused(name: str) -> None:
    optimizer, by_hand = composed_and_by_hand(name, "AdamW")
    check_same_path(optimizer, by_hand, LOWERINGS[0], steps=1)
    optimizer.eval()
    with pytest.raises(RuntimeError, match="train"):
        optimizer.step()
