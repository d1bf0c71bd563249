"""List the modifiers that tests compare with changes by hand, and build both optimizers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from composition import by_hand as hand
from composition.training import SHAPES, SHAPES_UP_TO_2D, parameters, two_groups
from interpreter import INTERPRETED

from optgen import optim
from optgen.compositions import compose, modifier

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


def composed_and_by_hand(name: str, base: str) -> tuple[Any, Any]:
    """Return an optimizer with the modifier, and one with the change by hand."""
    case, options = CASES[name], OPTIONS.get(base, {})
    cls: Any = compose(getattr(optim, base), modifier(name)(**case.arguments))
    ours = cls(two_groups(parameters(case.shapes)), **options)
    theirs = getattr(torch.optim, base)(two_groups(parameters(case.shapes)), **options)
    return ours, case.by_hand(theirs)
