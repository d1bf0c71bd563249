"""Tables of evidence in Markdown, and pages that contain them between two marks."""

from __future__ import annotations

from collections.abc import Sequence

from optgen.runtime.lowerings import BACKENDS
from optgen.verification.compare import BY_HAND
from optgen.verification.evidence import Row
from optgen.verification.references.sources import SOURCES

END_MARK = "<!-- end -->"
LOWERING_TITLES = {name: entry.title for name, entry in BACKENDS.items()} | {BY_HAND: "by hand"}
"""The titles of lowerings. LBFGS has no lowerings, because it is written by hand."""
HEADER = ("name", "compared with", "version", "steps", *LOWERING_TITLES.values(), "bound", "agrees")
_DIFFERENCE = "difference"
"""Title of the column by which a page's own table is recognized; `HEADER` has no such column."""


def start_mark(reference: str | None) -> str:
    """Return the line before a table of one kind of references."""
    option = f" --reference {reference}" if reference else ""
    return f"<!-- by optgen verify{option} -->"


def has_marks(page: str, reference: str | None) -> bool:
    """Tell whether a page has the two lines between which a table belongs."""
    return END_MARK in page.partition(start_mark(reference))[2]


def cells(row: Row) -> tuple[str, ...]:
    """Return a row as text, in the columns of `HEADER`."""
    errors = (f"{row.errors[key]:.1e}" if key in row.errors else "" for key in LOWERING_TITLES)
    agrees = "yes" if row.passed else "no"
    first_cells = (row.name, row.reference, row.version, str(row.steps))
    return (*first_cells, *errors, f"{row.bound:.0e}", agrees)


def table(rows: Sequence[Row]) -> str:
    """Return a table in Markdown. The reference is a link to its source."""
    lines = [HEADER, ("---",) * len(HEADER)]
    for row in rows:
        name, reference, *rest = cells(row)
        lines.append((f"`{name}`", f"[{reference}]({row.source})", *rest))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def fill_table(page: str, rows: Sequence[Row], reference: str | None) -> str:
    """Return a page with a table of the rows between its two marks. An empty page gets marks, too.

    A table with a column "difference" is the page's own: it keeps its columns, and only the columns
    "compared with" and "difference" are filled.
    """
    start = start_mark(reference)
    before, _, rest = (page or f"{start}\n{END_MARK}\n").partition(start)
    old_table, _, after = rest.partition(END_MARK)
    if f"| {_DIFFERENCE} |" in old_table:
        new_table = _with_own_columns(old_table, rows)
    else:
        new_table = f"\n\n{table(rows)}\n"
    return f"{before}{start}{new_table}{END_MARK}{after}"


def _with_own_columns(old_table: str, rows: Sequence[Row]) -> str:
    """Return a page's own table with its columns of evidence filled; other columns stay."""
    cells_by_name = {f"`{row.name}`": _evidence_cells(row) for row in rows}
    lines = old_table.split("\n")
    column_titles = next(line for line in lines if f"| {_DIFFERENCE} |" in line).split(" | ")
    for index, line in enumerate(lines):
        old_cells = line.split(" | ")
        new_cells = cells_by_name.get(old_cells[0].removeprefix("| "), {})
        if len(old_cells) == len(column_titles):
            pairs = zip(column_titles, old_cells, strict=True)
            lines[index] = " | ".join(new_cells.get(title, cell) for title, cell in pairs)
    return "\n".join(lines)


def _evidence_cells(row: Row) -> dict[str, str]:
    """Return the cells of evidence, by the titles of their columns."""
    evidence_cells = {_DIFFERENCE: f"{row.largest_difference:.1e}"}
    if row.name in SOURCES:
        source = SOURCES[row.name]
        evidence_cells["compared with"] = f"[{source.title}]({source.address})"
    return evidence_cells
