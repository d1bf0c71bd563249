"""Modifiers of optimizers, for `optgen.compose`: one name for each file of specs/modifiers/."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from optgen.compositions import list_modifiers, modifier, modifier_from_file, quantized, state_dtype
from optgen.spec.errors import did_you_mean

if TYPE_CHECKING:
    from optgen.spec.declare import Modifier

__all__ = ["load", "quantized", "state_dtype"]


def load(path: str | os.PathLike[str]) -> Modifier:
    """Return the modifier of a spec file.

    Raises:
        SpecError: the file holds no modifier, or the modifier has a mistake.
        OSError: the file cannot be read.
    """
    return modifier_from_file(Path(path))


def __getattr__(name: str) -> Modifier:
    if name not in list_modifiers():
        hint = did_you_mean(name, list_modifiers(), f"there are {', '.join(list_modifiers())}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: {hint}")
    return modifier(name)


def __dir__() -> list[str]:
    return sorted([*list_modifiers(), *__all__])
