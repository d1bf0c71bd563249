"""Modifiers of optimizers, for `optgen.compose`: one name for each file of specs/modifiers/."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optgen.compose import list_modifiers, modifier, state_dtype

if TYPE_CHECKING:
    from optgen.spec.declare import Modifier

__all__ = ["state_dtype"]


def __getattr__(name: str) -> Modifier:
    if name not in list_modifiers():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return modifier(name)


def __dir__() -> list[str]:
    return sorted([*list_modifiers(), *__all__])
