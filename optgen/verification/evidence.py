"""Rows of evidence: an optimizer's largest difference from its reference, in each lowering.

Tables in Markdown show them, on pages that contain them between two marks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from optgen import __version__
from optgen.runtime.backends import BACKENDS
from optgen.verification.case import Case
from optgen.verification.compare_with_reference import (
    BY_HAND,
    larger_error,
    run_case,
    runnable_lowerings,
)
from optgen.verification.packages import LIBRARIES, TORCH, Package, class_of
from optgen.verification.references import CASES, SOURCES

RULE, PACKAGE = "rule", "package"


@dataclass(frozen=True)
class Row:
    """One comparison of an optimizer. The fields are the keys of docs/evidence.json."""

    name: str
    reference: str
    version: str
    source: str
    steps: int
    dtype: str
    errors: dict[str, float]  # the largest difference of an element after any step, by lowering
    bound: float
    passed: bool

    @property
    def largest_difference(self) -> float:
        """The largest difference in any lowering."""
        largest = 0.0
        for error in self.errors.values():
            largest = larger_error(largest, error)
        return largest


def compare_with_references(name: str, reference: str | None) -> list[Row]:
    """Compare an optimizer with references of one kind: "rule" or "package".

    None takes the first installed package, or the rule if none is installed. With "package" there
    is no row if no package is installed.
    """
    if reference == RULE:
        return [_compare_with_rule(name)]
    packages = installed_packages(name)
    if reference is None:
        packages = packages[:1]
        if not packages:
            return [_compare_with_rule(name)]
    return [_compare_with_package(each) for each in packages]


def installed_packages(name: str) -> list[list[Package]]:
    """Return the installed packages that have an optimizer; each is a list, one entry per case."""
    by_distribution: dict[str, list[Package]] = {}
    for package in (*TORCH, *LIBRARIES):
        if package.case.name == name and package.version is not None:
            by_distribution.setdefault(package.distribution, []).append(package)
    return list(by_distribution.values())


def distribution_names(name: str) -> list[str]:
    """Return the names of the packages that have an optimizer, installed or not."""
    packages = (p.distribution for p in (*TORCH, *LIBRARIES) if p.case.name == name)
    return list(dict.fromkeys(packages))


def bound_reasons(row: Row) -> list[str]:
    """Return why a row's package has a wider bound than usual."""
    packages_of_row = (
        each for each in installed_packages(row.name) if _reference(each) == row.reference
    )
    return [
        package.bound_reason
        for packages in packages_of_row
        for package in packages
        if package.bound_reason
    ]


def title_of_rule(name: str) -> str:
    """Return the text that names an independent rule in the column of references."""
    return f"independent rule ({SOURCES[name].title})"


def to_json(rows: Sequence[Row]) -> str:
    """Return rows as JSON, a list of objects. Null stands for a NaN or infinite difference."""
    entries = []
    for row in rows:
        errors = {key: e if math.isfinite(e) else None for key, e in row.errors.items()}
        entries.append(asdict(row) | {"errors": errors})
    return json.dumps(entries, indent=1) + "\n"


def from_json(text: str) -> list[Row]:
    """Return the rows of a JSON text."""
    entries = json.loads(text)
    for entry in entries:
        entry["errors"] = {k: math.nan if e is None else e for k, e in entry["errors"].items()}
    return [Row(**entry) for entry in entries]


def _compare_with_rule(name: str) -> Row:
    """Compare with the independent rule; compare a class of torch.optim with torch's class."""
    cases = [case for case in CASES if case.name == name]
    if not cases:
        return _compare_with_package([package for package in TORCH if package.case.name == name])
    return _compare_cases(cases, title_of_rule(name), __version__, SOURCES[name].address)


def _compare_with_package(packages: Sequence[Package]) -> Row:
    """Compare with all cases of one package."""
    cases, first = [package.case for package in packages], packages[0]
    return _compare_cases(cases, _reference(packages), first.version or "", first.source)


def _reference(packages: Sequence[Package]) -> str:
    """Return the text that names a package in the column of references, with its cases' labels."""
    labels = [package.case.label for package in packages]
    title = _title(packages[0].distribution)
    return f"{title} ({', '.join(labels)})" if all(labels) else title


def _title(distribution: str) -> str:
    return "torch.optim" if distribution == "torch" else distribution


def _compare_cases(cases: Sequence[Case], reference: str, version: str, source: str) -> Row:
    """Run cases that have the same bound, and return one row for all of them."""
    name, bound = cases[0].name, cases[0].bound
    if any(case.bound != bound for case in cases):
        raise ValueError(f"the cases of {name} have several bounds: give each bound a row")
    cls = class_of(name)
    errors: dict[str, float] = {}
    for lowering in runnable_lowerings(cls):
        for case in cases:
            error = run_case(case, cls, lowering).max_error
            errors[lowering] = larger_error(errors.get(lowering, 0.0), error)
    steps, passed = max(case.steps for case in cases), all(e <= bound for e in errors.values())
    return Row(name, reference, version, source, steps, "float64", errors, bound, passed)


def imported_classes(text: str) -> dict[str, str]:
    """Return the classes that `optgen import` made an equal spec of, with their versions.

    `text` is that of docs/imported_classes.json: rows by package, of benchmarks/import_table.py. A
    class is written as in "lion_pytorch:Lion".
    """
    return {
        f"{package}:{row['name']}": row["version"]
        for package, rows in json.loads(text).items()
        for row in rows
        if row["verdict"] == "proven"
    }


def _imported_class(row: Row, imported: Mapping[str, str]) -> str:
    """Return the class of a row's package if its import is equal, in the row's version, or ""."""
    for each in (*TORCH, *LIBRARIES):
        is_of_row = each.case.name == row.name
        is_of_row &= row.reference.partition(" (")[0] == _title(each.distribution)
        if is_of_row and imported.get(each.class_path) == row.version:
            return f"`{each.class_path.rpartition(':')[2]}`"
    return ""


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


def table(rows: Sequence[Row], imported: Mapping[str, str] | None = None) -> str:
    """Return a table in Markdown. The reference is a link to its source.

    `imported`: the classes of packages with an equal import, for one more column.
    """
    more = ("imported from, equal",) if imported is not None else ()
    lines = [(*HEADER, *more), ("---",) * len((*HEADER, *more))]
    for row in rows:
        name, reference, *rest = cells(row)
        rest += [_imported_class(row, imported)] if imported is not None else []
        lines.append((f"`{name}`", f"[{reference}]({row.source})", *rest))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def fill_table(
    page: str,
    rows: Sequence[Row],
    reference: str | None,
    imported: Mapping[str, str] | None = None,
) -> str:
    """Return a page with a table of the rows between its two marks. An empty page gets marks, too.

    `imported`: the classes of packages with an equal import. A table of packages shows them.
    A table with a column "difference" is the page's own: it keeps its columns, and only the columns
    "compared with" and "difference" are filled.
    """
    start = start_mark(reference)
    before, _, rest = (page or f"{start}\n{END_MARK}\n").partition(start)
    old_table, _, after = rest.partition(END_MARK)
    if f"| {_DIFFERENCE} |" in old_table:
        new_table = _with_own_columns(old_table, rows)
    else:
        new_table = f"\n\n{table(rows, imported if reference == PACKAGE else None)}\n"
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
