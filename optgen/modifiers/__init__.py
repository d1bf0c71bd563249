"""Modifiers of optimizers, for `optgen.compose`: one attribute for each file of specs/modifiers/."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optgen.spec.declare import Modifier


def __getattr__(name: str) -> Modifier:
    from optgen.compose import list_modifiers, modifier

    if name not in list_modifiers():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return modifier(name)


def __dir__() -> list[str]:
    from optgen.compose import list_modifiers

    return list_modifiers()
