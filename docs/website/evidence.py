"""Show the comparisons of a rule, from the catalogue's page and from docs/evidence*.json."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from optgen.verification.packages import LIBRARIES, TORCH
from website.entries import ROOT, Entry
from website.markdown_sections import relink
from website.tables import table

_RULE = re.compile(r"independent rule \((.*)\)")
_USUAL_BOUND = 1e-10
"""The usual bound of a difference."""
FILES = sorted((ROOT / "docs").glob("evidence*.json"))
CATALOGUE = ROOT / "docs" / "catalogue.md"
_ROW = re.compile(r"^\| `(\w+)` \| \[`\w+`\]\(\S*?\) \| (.*?) \| (.*?) \| (.*?) \|$", re.MULTILINE)


@functools.cache
def catalogue_rows() -> dict[str, tuple[str, str, str]]:
    """Return `(compared with, largest difference, how to use it)` for each row of the catalogue."""
    text = CATALOGUE.read_text(encoding="utf-8")
    return {name: (other, error, hint) for name, other, error, hint in _ROW.findall(text)}


@functools.cache
def recorded_comparisons() -> tuple[dict[str, Any], ...]:
    """Return the records of docs/evidence*.json, the first for each optimizer and reference."""
    records: dict[tuple[str, str], Any] = {}
    for file in FILES:
        for each in json.loads(file.read_text(encoding="utf-8")):
            records.setdefault((each["name"], each["reference"]), each)
    return tuple(records.values())


def catalogue_cells(entry: Entry) -> tuple[str, ...]:
    """Return the cells of an optimizer's row, with links that are right on its page."""
    cells = catalogue_rows().get(entry.name, ("", "", ""))
    return tuple(
        relink(cell.replace("](#", "](catalogue.md#"), "docs/catalogue.md", entry.page)
        for cell in cells
    )


def hint(entry: Entry) -> str:
    """Return how to use an optimizer, in the words of the catalogue."""
    return catalogue_cells(entry)[2]


def evidence(entry: Entry) -> str:
    """Return what an optimizer was compared with, and the largest differences."""
    parts = [_from_catalogue(entry), comparison_table(entry.name, recorded_comparisons())]
    return "\n\n".join(part for part in parts if part)


def _from_catalogue(entry: Entry) -> str:
    if entry.name in catalogue_rows():
        other, error, _ = catalogue_cells(entry)
        return (
            f"Compared with optgen's own rewrite in plain torch, made from: {other}. Largest "
            f"difference of an element: {error} ([how it was compared](../evidence.md))."
        )
    if entry.in_torch:
        return (
            f"Compared with `torch.optim.{entry.title}`: arguments, states, checkpoints, error "
            "messages and numbers, for every input that torch's own tests list "
            "([differences](../differences.md))."
        )
    return "Compared with torchrec's class in `tests/keyed` ([keyed optimizers](../keyed.md))."


def comparison_table(name: str, records: Iterable[Mapping[str, Any]]) -> str:
    """Return the comparisons of an optimizer as a table; "" if none is recorded."""
    found = [each for each in records if each["name"] == name]
    rows = [_row(each) for each in found]
    if not rows:
        return ""
    header = ("reference", "version", "run", "largest error of a lowering", "within the bound")
    command = f"```sh\noptgen verify {name}\n```"
    is_wide = any(each["bound"] > _USUAL_BOUND for each in found)
    parts = [table(header, rows), *(_reasons(name) if is_wide else ())]
    return "\n\n".join([*parts, "This command compares again:", command])


def _reasons(name: str) -> Iterator[str]:
    """Yield why comparisons with packages have a wider bound than usual."""
    comparisons = [each for each in (*TORCH, *LIBRARIES) if each.case.name == name]
    for reason in sorted({each.bound_reason for each in comparisons if each.bound_reason}):
        yield (
            f"The bound is wider than {_USUAL_BOUND:.0e} where {reason} "
            "([how a comparison runs](../evidence.md#how-a-comparison-runs))."
        )


def _row(record: Mapping[str, Any]) -> tuple[str, ...]:
    errors = (
        f"{lowering}:\N{NO-BREAK SPACE}{'not finite' if error is None else f'{error:.1e}'}"
        for lowering, error in record["errors"].items()
    )
    source, reference, version = record["source"], record["reference"], record["version"]
    if rewrite := _RULE.fullmatch(reference):
        reference, version = f"optgen's own rewrite, from: {rewrite[1]}", f"optgen {version}"
    return (
        f"[{reference}]({source})" if source.startswith("http") else reference,
        version,
        f"{record['steps']} steps, {record['dtype']}",
        "<br>".join(errors),
        f"{'yes' if record['passed'] else '**no**'}, {record['bound']:.0e}",
    )
