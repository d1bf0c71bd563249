"""Limit how long a rule may take."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

_SECONDS = 30


class HangError(Exception):
    """A rule took longer than any should."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raise an error if the block takes too long; inside another limit do nothing."""
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def ring(*_: Any) -> None:
        raise HangError(f"longer than {_SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
