"""Limit a rule's processor time; its wall time would depend on how busy the machine is."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

_MAX_SECONDS = 30.0


class HangError(Exception):
    """A rule took more processor time than the limit."""


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Raise an error if the block takes too long; inside another time limit, do nothing."""
    if signal.getitimer(signal.ITIMER_PROF)[0]:
        yield
        return

    def raise_hang_error(*_: Any) -> None:
        raise HangError(f"longer than {_MAX_SECONDS:.0f} seconds")

    before = signal.signal(signal.SIGPROF, raise_hang_error)
    signal.setitimer(signal.ITIMER_PROF, _MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
