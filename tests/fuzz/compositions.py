"""Compose a drawn rule with modifiers of the catalogue, now and then."""

from __future__ import annotations

from random import Random

from optgen.compositions import StateDtype, composed, list_modifiers, modifier
from optgen.spec import Spec
from optgen.spec.composition.names import CompositionError
from optgen.spec.declare import Modifier
from optgen.spec.errors import SpecError

_VALUES = {
    "accumulate": {"accumulated_steps": (1, 2, 3)},
    "adaptive_clip": {"clip_factor": (0.01, 0.5)},
    "clip_norm": {"max_norm": (0.05, 1.0)},
    "clip_tensor_norm": {"max_tensor_norm": (0.05, 1.0)},
    "clip_value": {"max_value": (0.25, 1.0)},
    "ema": {"ema_decay": (0.5, 0.99)},
    "lookahead": {"sync_period": (1, 2, 3), "slow_step": (0.5, 0.75)},
}
"""Values of hyperparameters that a few steps tell apart."""
_MATRICES = ("adaptive_clip", "centralize")
"""Modifiers that refuse parameters of more than two axes, which most rules take."""
_DTYPES = ("bfloat16", "float16", "float32")


def drawn(seed: str | int, text: str) -> str:
    """Return the text of the rule with modifiers, if there are some that go together."""
    lot = Random(f"modifiers {seed}")
    if lot.random() > 0.2:
        return text
    known = [name for name in list_modifiers() if name not in _MATRICES]
    names = lot.sample(known, lot.choice((1, 1, 2, 2, 3, 4)))
    chosen: list[Modifier | StateDtype] = [_with_values(lot, name) for name in names]
    if lot.random() < 0.15:
        chosen.append(StateDtype(lot.choice(_DTYPES), ()))
    try:
        return composed(Spec("Random", text, "random.py", 1), tuple(chosen), "Random").source
    except (CompositionError, SpecError):
        return text


def _with_values(lot: Random, name: str) -> Modifier:
    values = {key: lot.choice(choices) for key, choices in _VALUES.get(name, {}).items()}
    return modifier(name)(**values)
