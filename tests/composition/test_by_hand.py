"""Every modifier computes what is done by hand around an optimizer of torch."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from composition import by_hand as hand
from composition.training import (
    LOWERINGS,
    SHAPES,
    check_same_path,
    in_groups,
    parameters,
)
from interpreter import INTERPRETED, outside_interpreter, run_inside

from optgen import optim
from optgen.compose import compose, list_modifiers, modifier

MATRICES = ((3, 4), (5,), (3, 4), (4, 3))
OPTIONS: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}, "AdamW": {"weight_decay": 0}}
ELSEWHERE = ("kahan", "low_precision_copy", "master", "stochastic_rounding")
"""Modifiers that change nothing, or too much, in float64: see test_low_precision.py."""


class Case(NamedTuple):
    """A modifier by hand, the arguments that it has there, and a third optimizer."""

    by_hand: type[Any]
    arguments: dict[str, Any]
    third: str
    shapes: tuple[tuple[int, ...], ...] = SHAPES
    first: str = "SGD"


CASES = {
    "accumulate": Case(hand.Accumulate, {"accumulated_steps": 3}, "NAdam"),
    "adaptive_clip": Case(hand.AdaptiveClip, {"clip_factor": 0.1}, "RMSprop", MATRICES),
    "cautious": Case(hand.Cautious, {}, "RAdam"),
    "cautious_decay": Case(hand.CautiousDecay, {"decay": 0.1}, "Adamax"),
    "centralize": Case(hand.Centralize, {}, "Adagrad", MATRICES),
    "clip_norm": Case(hand.ClipNorm, {"max_norm": 1.0}, "Adadelta"),
    "clip_tensor_norm": Case(hand.ClipTensorNorm, {"max_tensor_norm": 0.5}, "RMSprop"),
    "clip_value": Case(hand.ClipValue, {"max_value": 0.3}, "NAdam"),
    "corrected_decay": Case(hand.CorrectedDecay, {"decay": 0.2, "max_lr": 0.1}, "Adagrad"),
    "coupled_decay": Case(hand.CoupledDecay, {"l2": 0.1}, "Rprop"),
    "decay_after": Case(hand.DecayAfter, {"decay": 0.1}, "RAdam"),
    "decoupled_decay": Case(hand.DecoupledDecay, {"decay": 0.1}, "NAdam"),
    "ema": Case(hand.Ema, {"ema_decay": 0.9}, "Adagrad"),
    "fixed_decay": Case(hand.FixedDecay, {"decay": 0.01}, "RMSprop"),
    "grams": Case(hand.Grams, {}, "Adamax"),
    "hyperball": Case(hand.Hyperball, {}, "Adadelta"),
    "lookahead": Case(hand.Lookahead, {"sync_period": 3, "slow_step": 0.4}, "RAdam"),
    "proximal_decay": Case(hand.ProximalDecay, {"decay": 0.1}, "Adam"),
    "schedule_free": Case(hand.ScheduleFree, {"average_momentum": 0.8}, "RMSprop"),
    "skip_nonfinite": Case(hand.SkipNonfinite, {}, "RMSprop", first="Adagrad"),
    "trust_ratio": Case(hand.TrustRatio, {}, "Adagrad"),
}
PAIRS = [
    (name, base)
    for name, case in CASES.items()
    for base in (["AdamW"] if INTERPRETED else [case.first, "AdamW", case.third])
]


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__, "test_by_hand and fused_triton")


def both(name: str, base: str) -> tuple[Any, Any]:
    """Return the composition, and what is done by hand."""
    case, options = CASES[name], OPTIONS.get(base, {})
    cls: Any = compose(getattr(optim, base), modifier(name)(**case.arguments))
    ours = cls(in_groups(parameters(case.shapes)), **options)
    theirs = getattr(torch.optim, base)(in_groups(parameters(case.shapes)), **options)
    return ours, case.by_hand(theirs)


def test_every_modifier_has_a_case() -> None:
    assert sorted([*CASES, *ELSEWHERE]) == list_modifiers()


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize(("name", "base"), PAIRS)
def test_by_hand(name: str, base: str, lowering: str) -> None:
    optimizer, by_hand = both(name, base)
    check_same_path(optimizer, by_hand, lowering)
