"""Implement `optgen verify`, which compares optimizers with independent implementations.

A spec file is compared with the evaluator, because nobody else has its rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from optgen.cli.catalogue import columns, spec_path
from optgen.emit import ToolchainError, write_atomically
from optgen.optim._create_optimizer import known_name
from optgen.runtime.toolchain.compiler import CompileError
from optgen.runtime.toolchain.library_cache import NoCompilerError
from optgen.verification import compare_with_evaluator, evidence
from optgen.verification.evidence import PACKAGE, RULE, Row
from optgen.verification.packages import NAMES


def run(
    names: Sequence[str],
    compare_all: bool,
    reference: str | None,
    json: Path | None,
    markdown: Sequence[Path],
) -> bool:
    """Compare, print a report and write files; return whether every row agrees.

    `reference` is RULE or PACKAGE: the kind of references to compare with. None chooses.
    """
    if reference not in (None, RULE, PACKAGE):
        raise typer.BadParameter(f"no reference {reference}; there are {RULE} and {PACKAGE}")
    files = [name for name in names if name.endswith(".py")]
    _check_options_of_files(files, names, compare_all, reference, markdown)
    catalogue_names = [] if files else _catalogue_names(names, compare_all)
    if reference == PACKAGE and not compare_all:
        _check_installed(catalogue_names)
    _check_files([*([json] if json else []), *markdown])
    page_texts = {page: _read_page(page, reference) for page in markdown}
    rows = _compare_files(files) if files else _compare(catalogue_names, reference)
    typer.echo("\n".join(_summary(rows, len(catalogue_names)) if compare_all else _report(rows)))
    if json:
        write_atomically(json, evidence.to_json(rows))
        typer.echo(f"rows: {json}")
    for page, text in page_texts.items():
        write_atomically(page, evidence.fill_table(text, rows, reference, _imported(page)))
        typer.echo(f"table: {page}")
    return all(row.passed for row in rows)


def _check_options_of_files(
    files: Sequence[str],
    names: Sequence[str],
    compare_all: bool,
    reference: str | None,
    markdown: Sequence[Path],
) -> None:
    """Raise an error for spec files beside what only names of the catalogue have."""
    if not files:
        return
    if len(files) < len(names) or compare_all:
        raise typer.BadParameter(
            "give spec files, or names of the catalogue: "
            "files are compared with their rules, names with other implementations"
        )
    for option, is_given in (
        ("--reference", reference is not None),
        ("--markdown", bool(markdown)),
    ):
        if is_given:
            raise typer.BadParameter(f"{option} is for names of the catalogue, not for spec files")


def _catalogue_names(names: Sequence[str], compare_all: bool) -> list[str]:
    """Return the names of the catalogue that are to be compared."""
    if compare_all and names:
        raise typer.BadParameter("give names or --all, not both")
    if not compare_all and not names:
        raise typer.BadParameter("name an optimizer, such as lion, or give --all")
    return list(NAMES) if compare_all else list(dict.fromkeys(map(_catalogue_name, names)))


def _catalogue_name(name: str) -> str:
    """Return the name of the catalogue for a name in any case, such as Lion or GaLore."""
    try:
        return known_name(name, NAMES)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _check_installed(names: Sequence[str]) -> None:
    """Raise an error for a name that no installed package has, and say what to install."""
    for name in names:
        if evidence.installed_packages(name):
            continue
        packages = evidence.distribution_names(name)
        remedy = f"pip install {packages[0]}" if packages else "use --reference rule"
        state = "is installed" if packages else "is known"
        raise typer.BadParameter(f"no package that has {name} {state}: {remedy}")


def _check_files(files: Sequence[Path]) -> None:
    """Raise an error for a file in a missing folder, before comparing for a minute."""
    for file in files:
        if not file.parent.is_dir():
            raise typer.BadParameter(f"no such folder: {file.parent}")


def _read_page(page: Path, reference: str | None) -> str:
    """Return the text of a page. Raise an error if the page has no place for the table."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    if text and not evidence.has_marks(text, reference):
        marks = f"{evidence.start_mark(reference)} and {evidence.END_MARK}"
        raise typer.BadParameter(f"{page} has no place for the table: add the lines {marks}")
    return text


def _imported(page: Path) -> dict[str, str] | None:
    """Return the imported classes that a file beside a page names; None if there is no file."""
    file = page.parent / "imported_classes.json"
    return evidence.imported_classes(file.read_text(encoding="utf-8")) if file.exists() else None


def _compare(names: Sequence[str], reference: str | None) -> list[Row]:
    """Compare all names, show the progress, and return the rows."""
    rows: list[Row] = []
    with typer.progressbar(
        names, item_show_func=lambda name: name or "", file=typer.get_text_stream("stderr")
    ) as bar:
        for name in bar:
            rows += evidence.compare_with_references(name, reference)
    return rows


def _compare_files(files: Sequence[str]) -> list[Row]:
    """Compare the rules of spec files with the evaluator, show the progress, and return the rows.

    Every file is found, read and checked before the first comparison.
    """
    rows: list[Row] = []
    rules = [_readable_rule(spec_path(file)) for file in dict.fromkeys(files)]
    try:
        with typer.progressbar(
            [comparison for rule in rules for comparison in rule.comparisons()],
            item_show_func=lambda comparison: str(comparison or ""),
            file=typer.get_text_stream("stderr"),
        ) as bar:
            for comparison in bar:
                rows += comparison.rows()
    except (NoCompilerError, CompileError) as error:
        raise ToolchainError(str(error)) from None
    return rows


def _readable_rule(path: Path) -> compare_with_evaluator.CheckedRule:
    try:
        return compare_with_evaluator.CheckedRule.read(path)
    except compare_with_evaluator.NotComparedError as error:
        raise typer.BadParameter(str(error)) from None


def _report(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a few lines for each row, then the table."""
    for row in rows:
        verdict = "agrees" if row.passed else "DOES NOT AGREE"
        yield f"{row.name} {verdict} with {row.reference}, version {row.version}"
        yield f"  source: {row.source}"
        yield f"  {row.steps} steps in {row.dtype}; each side has the gradients at its parameters"
        for key, error in row.errors.items():
            title = evidence.LOWERING_TITLES[key]
            yield f"  {title}: the largest difference of an element is {error:.1e}"
        yield f"  the bound is {row.bound:.0e}"
        yield from (
            f"  {reason}"
            for reason in (*evidence.bound_reasons(row), *compare_with_evaluator.remarks(row))
        )
        yield ""
    yield _table(rows)


def _summary(rows: Sequence[Row], num_names: int) -> Iterator[str]:
    """Yield the table, how many rows agree, and how many names have no row."""
    if rows:
        yield _table(rows)
    agreeing = sum(row.passed for row in rows)
    yield f"\n{agreeing} of {len(rows)} rows agree with their reference"
    missing = num_names - len({row.name for row in rows})
    if missing:
        yield f"{missing} of {num_names} optimizers have no installed package"


def _table(rows: Sequence[Row]) -> str:
    return columns([evidence.HEADER, *map(evidence.cells, rows)])
