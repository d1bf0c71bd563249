"""Write the header of a column on each of its cells, so that a phone can show a row as a list."""

from __future__ import annotations

import html
import re

_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEADER = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<td\b")
_TAG = re.compile(r"<[^>]*>")
_FEWEST_COLUMNS = 3
"""A phone has room for a table of fewer columns."""


def with_labels(page: str) -> str:
    """Return the HTML of a page whose wide tables, marked `data-rows`, have labelled cells."""
    return _TABLE.sub(lambda match: _labelled(match[0]), page)


def _labelled(table: str) -> str:
    titles = [html.unescape(_TAG.sub("", each)).strip() for each in _HEADER.findall(table)]
    if len(titles) < _FEWEST_COLUMNS:
        return table
    labels = [f' data-label="{html.escape(title)}"' for title in titles]
    rows = _ROW.sub(lambda match: _with_cells(match[0], labels), table)
    return rows.replace("<table>", "<table data-rows>", 1)


def _with_cells(row: str, labels: list[str]) -> str:
    """Return a row with the labels of its cells."""
    waiting = iter(labels)
    return _CELL.sub(lambda match: f"{match[0]}{next(waiting, '')}", row)
