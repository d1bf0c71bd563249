"""Limit the time that the compiler takes for one spec, which may come from a stranger."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

MAX_SECONDS = 20
"""Seconds of CPU time for reading a spec, and again for generating its files.

The largest rule of the catalogue takes two. Sizes are limited too, but some passes take much more
than linear time.
"""

_TIMER = getattr(signal, "ITIMER_VIRTUAL", 1)


class TooSlowError(Exception):
    """The compiler took too long for a spec."""


@contextlib.contextmanager
def limited_time() -> Iterator[None]:
    """Raise a TooSlowError when this thread has computed for `MAX_SECONDS`.

    Only the main thread of a process can be interrupted; in any other, there is no limit.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "setitimer") or any(signal.getitimer(_TIMER)):
        yield  # inside another limit, that one holds
        return
    end = time.thread_time() + MAX_SECONDS

    def check(number: int, frame: FrameType | None) -> None:
        if time.thread_time() > end:
            raise TooSlowError

    handler_before = signal.signal(signal.SIGVTALRM, check)
    signal.setitimer(_TIMER, 1, 1)
    try:
        yield
    finally:
        signal.setitimer(_TIMER, 0)
        signal.signal(signal.SIGVTALRM, handler_before)
