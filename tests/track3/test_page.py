"""Test the tables of examples/track3/README.md: what a result is made of, and what was measured."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from track3.test_results import lowerings

import examples.track3.result
from examples.track3.drawing import table
from examples.track3.result import Result
from examples.track3.results import RESULTS
from examples.track3.saved_runs import SavedRuns
from examples.track3.training import Setup

FOLDER = Path(examples.track3.result.__file__).parent
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in re.findall(r"^\| \d+ \|.*\|$", PAGE, re.MULTILINE)
]
"""The cells of the first table: number, name, title, parts, a difference for each lowering."""


def parts(result: Result) -> list[str]:
    """Return the names of a result's optimizer and of its modifiers."""
    if not isinstance(result.matrix_factory, partial):
        return [result.matrix_factory().__name__]
    optimizer, *modifiers = result.matrix_factory.args
    name = optimizer.stem if isinstance(optimizer, Path) else optimizer.__name__
    return [name, *(modifier.name for modifier in modifiers)]


def test_the_table_names_every_result() -> None:
    results = [[str(each.number), f"`{name}`", each.title] for name, each in RESULTS.items()]

    assert [row[:3] for row in ROWS] == sorted(results, key=lambda row: int(row[0]))
    assert f"{len(RESULTS)} results" in " ".join(PAGE.split())


def test_the_table_says_what_a_result_is_made_of() -> None:
    cells = {f"result {row[0]}": row[3] for row in ROWS}
    for row in ROWS:
        cell = re.sub(r"result \d+", lambda match: cells[match[0]], row[3])
        assert re.findall(r"`(\w+)`", cell) == parts(RESULTS[row[1].strip("`")]), row


def test_the_table_has_a_difference_for_each_lowering_that_a_result_has() -> None:
    for row in ROWS:
        available = lowerings(RESULTS[row[1].strip("`")])
        assert len(row) == 7
        assert [cell == "none" for cell in row[4:]] == [k >= len(available) for k in range(3)], row
        assert all(float(cell) <= 1e-10 for cell in row[4 : 4 + len(available)]), row


def test_the_losses_are_those_of_the_file() -> None:
    measured = SavedRuns.load(FOLDER / "measured.json", Setup())

    assert f"\n{table(measured)}\n" in PAGE
    seconds = sorted(round(run.seconds) for run in (*measured.runs, *measured.tuning))
    assert f"a run took {seconds[0]} to {seconds[-1]} seconds" in PAGE.replace("\n", " ")
