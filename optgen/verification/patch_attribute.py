"""Replace an attribute temporarily."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def patch_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of a module, a class or an object inside the context.

    Afterwards an attribute that the owner inherited is inherited again.
    """
    inherited, old_value = name not in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, old_value)
