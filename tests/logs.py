"""Collect what a test logs.

pytest's own plugin attaches handlers to all loggers of torch three times a test, whether the test
reads logs or not. That took longer than most tests, so pyproject.toml switches the plugin off.
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
def collect_logs(*names: str, level: int = logging.WARNING) -> Iterator[list[logging.LogRecord]]:
    """Yield a list that gets what these loggers log; without names, all loggers."""
    records: list[logging.LogRecord] = []
    handler = _Collector(records)
    handler.setLevel(level)
    known = logging.root.manager.loggerDict.values()
    existing = [each for each in known if isinstance(each, logging.Logger)]
    # The records of these loggers do not reach the root logger.
    separate = [each for each in existing if not each.propagate]
    loggers = [*map(logging.getLogger, names)] or [logging.root, *separate]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        if names:
            logger.setLevel(level)
    try:
        yield records
    finally:
        for logger, old_level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(old_level)
