"""Limit a rule's processor time, not its wall time, which is longer on a busy machine."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

_SECONDS = 30.0


class HangError(Exception):
    """A rule took longer than any should."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raise an error if the block takes too long; inside another limit do nothing."""
    if signal.getitimer(signal.ITIMER_PROF)[0]:
        yield
        return

    def ring(*_: Any) -> None:
        raise HangError(f"longer than {_SECONDS:.0f} seconds")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
