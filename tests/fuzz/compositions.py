"""Compose some drawn rules with modifiers of the catalogue."""

from __future__ import annotations

from random import Random

from optgen.compositions import StateDtype, composed_spec, list_modifiers, modifier
from optgen.spec import Spec
from optgen.spec.composition.check_parts import CompositionError
from optgen.spec.declare import Modifier
from optgen.spec.errors import SpecError

_VALUES = {
    "accumulate": {"accumulated_steps": (1, 2, 3)},
    "adaptive_clip": {"clip_factor": (0.01, 0.5)},
    "clip_norm": {"max_norm": (0.05, 1.0)},
    "clip_tensor_norm": {"max_tensor_norm": (0.05, 1.0)},
    "clip_value": {"max_value": (0.25, 1.0)},
    "cautious_decay": {"decay": (0.1, 1.0)},
    "corrected_decay": {"decay": (0.1,), "max_lr": (0.1, 1.0)},
    "coupled_decay": {"l2": (0.1, 1.0)},
    "decay_after": {"decay": (0.1, 1.0)},
    "decoupled_decay": {"decay": (0.1, 1.0)},
    "ema": {"ema_decay": (0.5, 0.99)},
    "ema_nesterov": {"look_ahead": (0.25, 0.5), "move_decay": (0.5, 0.75)},
    "fixed_decay": {"decay": (0.01, 0.1)},
    "gradient_noise": {"noise_eta": (0.01, 1.0)},
    "lookahead": {"sync_period": (1, 2, 3), "slow_step": (0.5, 0.75)},
    "proximal_decay": {"decay": (0.1, 1.0)},
    "schedule_free": {"average_momentum": (0.5, 0.9), "weight_power": (0, 1)},
    "update_floor": {"least_ratio": (0.25, 5.0), "by_row": (False, True)},
}
"""Values of hyperparameters that change the result within a few steps."""
REFUSE_3D = ("adaptive_clip", "centralize")
"""Modifiers that refuse parameters of more than two axes."""
_DTYPES = ("bfloat16", "float16", "float32")


def add_modifiers(seed: str | int, text: str) -> str:
    """Return the rule's text; for some seeds with modifiers, if these can be composed."""
    rng = Random(f"modifiers {seed}")
    if rng.random() > 0.2:
        return text
    usable_names = [name for name in list_modifiers() if name not in REFUSE_3D]
    names = rng.sample(usable_names, rng.choice((1, 1, 2, 2, 3, 4)))
    chosen: list[Modifier | StateDtype] = [draw_modifier(rng, name) for name in names]
    if rng.random() < 0.15:
        chosen.append(StateDtype(rng.choice(_DTYPES), ()))
    try:
        return composed_spec(Spec("Random", text, "random.py", 1), tuple(chosen), "Random").source
    except (CompositionError, SpecError):
        return text


def draw_modifier(rng: Random, name: str) -> Modifier:
    """Return a modifier of the catalogue with random values."""
    values = {key: rng.choice(choices) for key, choices in _VALUES.get(name, {}).items()}
    return modifier(name)(**values)
