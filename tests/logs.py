"""Collect what a test logs.

pytest's own plugin attaches handlers to all loggers of torch three times a test, whether the test
reads logs or not. That took longer than most tests, so it is switched off.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator


class _Collector(logging.Handler):
    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self.records = records

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextlib.contextmanager
def collected(*names: str, level: int = logging.WARNING) -> Iterator[list[logging.LogRecord]]:
    """Yield a list that gets what these loggers log; without names, all loggers."""
    records: list[logging.LogRecord] = []
    handler = _Collector(records)
    handler.setLevel(level)
    known = logging.root.manager.loggerDict.values()
    silent = [one for one in known if isinstance(one, logging.Logger) and not one.propagate]
    loggers = [*map(logging.getLogger, names)] or [logging.root, *silent]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.addHandler(handler)
        if names:
            one.setLevel(level)
    try:
        yield records
    finally:
        for one, before in zip(loggers, levels, strict=True):
            one.removeHandler(handler)
            one.setLevel(before)
