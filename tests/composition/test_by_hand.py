"""Test that every modifier equals a change by hand around an optimizer of torch."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from composition import by_hand as hand
from composition import papers
from composition.training import (
    BOUND,
    LOWERINGS,
    SHAPES,
    SHAPES_UP_TO_2D,
    STEPS,
    check_same_path,
    difference,
    give_gradients,
    parameters,
    params_and_lrs,
    two_groups,
)
from interpreter import INTERPRETED, outside_interpreter, run_inside

from optgen import optim, use_lowering
from optgen.compositions import compose, list_modifiers, modifier
from optgen.spec.composition.names import CompositionError
from optgen.spec.errors import SpecError

OPTIONS: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}, "AdamW": {"weight_decay": 0}}
TESTED_ELSEWHERE = (
    "gradient_noise",
    "kahan",
    "low_precision_copy",
    "master",
    "stochastic_rounding",
)
"""Modifiers that other files test: in float64 they change nothing, or add random numbers."""


def bases_to_test(*bases: str) -> tuple[str, ...]:
    """Return all optimizers, but in the interpreter, which is slow, only the first one."""
    return bases[:1] if INTERPRETED else bases


class Case(NamedTuple):
    """A modifier by hand, its arguments, and two optimizers to modify besides AdamW."""

    by_hand: type[Any]
    arguments: dict[str, Any]
    third_base: str
    shapes: tuple[tuple[int, ...], ...] = SHAPES
    second_base: str = "SGD"


CASES = {
    "accumulate": Case(hand.Accumulate, {"accumulated_steps": 3}, "NAdam"),
    "adaptive_clip": Case(hand.AdaptiveClip, {"clip_factor": 0.1}, "RMSprop", SHAPES_UP_TO_2D),
    "cautious": Case(hand.Cautious, {}, "RAdam"),
    "cautious_decay": Case(hand.CautiousDecay, {"decay": 0.1}, "Adamax"),
    "centralize": Case(hand.Centralize, {}, "Adagrad", SHAPES_UP_TO_2D),
    "clip_norm": Case(hand.ClipNorm, {"max_norm": 1.0}, "Adadelta"),
    "clip_tensor_norm": Case(hand.ClipTensorNorm, {"max_tensor_norm": 0.5}, "RMSprop"),
    "clip_value": Case(hand.ClipValue, {"max_value": 0.3}, "NAdam"),
    "corrected_decay": Case(hand.CorrectedDecay, {"decay": 0.2, "max_lr": 0.1}, "Adagrad"),
    "coupled_decay": Case(hand.CoupledDecay, {"l2": 0.1}, "Rprop"),
    "decay_after": Case(hand.DecayAfter, {"decay": 0.1}, "RAdam"),
    "decoupled_decay": Case(hand.DecoupledDecay, {"decay": 0.1}, "NAdam"),
    "ema": Case(hand.Ema, {"ema_decay": 0.9}, "Adagrad"),
    "ema_nesterov": Case(hand.EmaNesterov, {"look_ahead": 0.4, "move_decay": 0.9}, "NAdam"),
    "fixed_decay": Case(hand.FixedDecay, {"decay": 0.01}, "RMSprop"),
    "grams": Case(hand.Grams, {}, "Adamax"),
    "hyperball": Case(hand.Hyperball, {}, "Adadelta"),
    "lookahead": Case(hand.Lookahead, {"sync_period": 3, "slow_step": 0.4}, "RAdam"),
    "proximal_decay": Case(hand.ProximalDecay, {"decay": 0.1}, "Adam"),
    "schedule_free": Case(hand.ScheduleFree, {"average_momentum": 0.8}, "RMSprop"),
    "skip_nonfinite": Case(hand.SkipNonfinite, {}, "RMSprop", second_base="Adagrad"),
    "trust_ratio": Case(hand.TrustRatio, {}, "Adagrad"),
    "update_floor": Case(hand.UpdateFloor, {"least_ratio": 2.0}, "Adamax"),
}
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
    run_inside(__file__, "test_by_hand and fused_triton")


def composed_and_by_hand(name: str, base: str) -> tuple[Any, Any]:
    """Return an optimizer with the modifier, and one with the change by hand."""
    case, options = CASES[name], OPTIONS.get(base, {})
    cls: Any = compose(getattr(optim, base), modifier(name)(**case.arguments))
    ours = cls(two_groups(parameters(case.shapes)), **options)
    theirs = getattr(torch.optim, base)(two_groups(parameters(case.shapes)), **options)
    return ours, case.by_hand(theirs)


def test_every_modifier_has_a_case() -> None:
    assert sorted([*CASES, *TESTED_ELSEWHERE, "amsgrad", "zero_grad"]) == list_modifiers()


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "base", "lowering"), COMBINATIONS)
def test_every_modifier_equals_its_change_by_hand(name: str, base: str, lowering: str) -> None:
    optimizer, by_hand = composed_and_by_hand(name, base)
    check_same_path(optimizer, by_hand, lowering)


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


@pytest.mark.parametrize(("dtype", "large"), [(torch.float32, 1e25), (torch.float64, 1e200)])
def test_large_gradients_are_not_skipped(dtype: torch.dtype, large: float) -> None:
    cls: Any = compose(optim.Adamax, modifier("skip_nonfinite"))
    param = torch.ones(3, dtype=dtype, requires_grad=True)
    param.grad = torch.full_like(param, large)
    cls([param]).step()
    assert (param < 1).all()


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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted({*CASES} - {"hyperball", "fixed_decay"}))
def test_a_learning_rate_of_zero_moves_nothing(name: str) -> None:
    shapes = CASES[name].shapes
    optimizer: Any = compose(optim.AdamW, modifier(name))(parameters(shapes), lr=0.0)
    for seed in range(6):
        give_gradients((param for param, _ in params_and_lrs(optimizer)), seed)
        optimizer.step()
    found = (param for param, _ in params_and_lrs(optimizer))
    assert difference(found, parameters(shapes)) < BOUND


@pytest.mark.sampled(5)
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
