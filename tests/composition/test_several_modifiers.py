"""Test several modifiers together: the order in which they act, and published compositions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from composition import by_hand as hand
from composition import papers
from composition.modifier_cases import CASES, OPTIONS, bases_to_test
from composition.training import (
    BOUND,
    LOWERINGS,
    SHAPES_UP_TO_2D,
    check_same_path,
    difference,
    give_gradients,
    parameters,
    params_and_lrs,
    two_groups,
)
from interpreter import INTERPRETED, outside_interpreter, run_inside

from optgen import optim, use_lowering
from optgen.compositions import compose, modifier
from optgen.spec.composition.check_parts import CompositionError
from optgen.spec.errors import SpecError


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__, "fused_triton")


PUBLISHED = {
    "lamb": (compose(optim.AdamW, modifier("trust_ratio")), papers.lamb, {"weight_decay": 0.1}),
    "adam_h": (compose(optim.Adam, modifier("hyperball")), papers.adam_h, {}),
    "c_adamw": (
        compose(optim.Adam, modifier("cautious"), modifier("decoupled_decay")(0.1)),
        papers.cautious_adamw,
        {},
    ),
    "ranger": (
        compose(optim.RAdam, modifier("lookahead"), modifier("centralize")),
        papers.ranger,
        {},
    ),
}


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_compositions_equal_published_optimizers_by_hand(name: str, lowering: str) -> None:
    cls, rule, options = PUBLISHED[name]
    optimizer = cls(two_groups(parameters(SHAPES_UP_TO_2D)), **options)
    by_hand = papers.Published(two_groups(parameters(SHAPES_UP_TO_2D)), rule)
    check_same_path(optimizer, by_hand, lowering)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_modifiers_take_effect_in_the_order_of_the_stages(lowering: str) -> None:
    """`compose` is called with the modifiers in another order than that of their stages."""
    arguments_of_modifiers: dict[str, dict[str, Any]] = {
        "ema": CASES["ema"].arguments,
        "lookahead": CASES["lookahead"].arguments,
        "decoupled_decay": {"decay": 0.1},
        "coupled_decay": {"l2": 0.1},
        "clip_norm": {"max_norm": 1.0},
        "cautious": {},
        "trust_ratio": {},
        "clip_value": {"max_value": 0.3},
        "centralize": {},
    }
    modifiers = [modifier(name)(**arguments) for name, arguments in arguments_of_modifiers.items()]
    optimizer: Any = compose(optim.AdamW, *modifiers)(
        two_groups(parameters(SHAPES_UP_TO_2D)), weight_decay=0
    )
    by_hand = hand.ManyStages(
        torch.optim.AdamW(two_groups(parameters(SHAPES_UP_TO_2D)), weight_decay=0)
    )
    check_same_path(optimizer, by_hand, lowering)
    averages = [optimizer.state[param]["ema"] for param, _ in params_and_lrs(optimizer)]
    assert difference(averages, by_hand.averages()) < BOUND


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_accumulated_gradients_are_clipped_together(lowering: str) -> None:
    optimizer: Any = compose(optim.AdamW, modifier("accumulate")(3), modifier("clip_norm")(0.5))(
        two_groups(parameters())
    )
    torchs = torch.optim.AdamW(two_groups(parameters()))
    params, theirs = ([param for param, _ in params_and_lrs(each)] for each in (optimizer, torchs))
    for seed in range(9):
        give_gradients(params, seed)
        with use_lowering(lowering):
            optimizer.step()
        for param, other in zip(params, theirs, strict=True):
            assert param.grad is not None
            total = param.grad / 3
            other.grad = total if seed % 3 == 0 else other.grad + total
        if seed % 3 == 2:
            torch.nn.utils.clip_grad_norm_(theirs, 0.5)
            torchs.step()
        assert difference(params, theirs) < BOUND


@pytest.mark.parametrize(
    "names",
    [
        ("skip_nonfinite", "ema"),
        ("skip_nonfinite", "lookahead"),
        ("ema", "schedule_free"),
    ],
)
def test_modifiers_that_do_not_go_together_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises((CompositionError, SpecError)):
        compose("adamw", *map(modifier, names))


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("base", bases_to_test("AdamW", "SGD", "NAdam"))
def test_modifiers_act_only_in_steps_that_end_an_accumulation(base: str, lowering: str) -> None:
    """Stages after the accumulation run in every third call, which takes the step."""
    names = ("lookahead", "ema", "cautious", "accumulate")
    modifiers = [modifier(name)(**CASES[name].arguments) for name in names]
    options = OPTIONS.get(base, {})
    optimizer: Any = compose(base.lower(), *modifiers)(two_groups(parameters()), **options)
    torchs = getattr(torch.optim, base)(two_groups(parameters()), **options)
    by_hand = hand.AccumulateMaskedLookahead(torchs)
    check_same_path(optimizer, by_hand, lowering, steps=9 if INTERPRETED else 30)
    averages = [optimizer.state[param]["ema"] for param, _ in params_and_lrs(optimizer)]
    assert difference(averages, by_hand.ema.averages()) < BOUND


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_modifiers_of_one_stage_act_in_the_order_of_the_call(
    order: tuple[int, int], lowering: str
) -> None:
    modifiers = [modifier("clip_tensor_norm")(0.5), modifier("adaptive_clip")(0.1)]
    by_hand = [hand.ClipTensorNorm, hand.AdaptiveClip]
    cls: Any = compose(optim.SGD, *(modifiers[index] for index in order))

    class Both(hand.ByHand):
        def change_before(self, param: torch.Tensor, lr: float) -> None:
            for index in order:
                by_hand[index].change_before(self, param, lr)

    torchs = torch.optim.SGD(two_groups(parameters(SHAPES_UP_TO_2D)))
    check_same_path(cls(two_groups(parameters(SHAPES_UP_TO_2D))), Both(torchs), lowering)
