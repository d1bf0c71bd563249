"""Let a value take the place of an attribute for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def stand_in(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let a value take the place of an attribute of a module, a class or an object.

    Afterwards an attribute that the owner inherits is inherited again.
    """
    inherited, before = name not in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
