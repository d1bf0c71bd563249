"""Show the benchmark figures of a class, with the machine and the command."""

from __future__ import annotations

import functools

from optgen.bench.report import ratio, torch_ratio
from optgen.bench.results import Cell, Figures, Results, load, machine_of
from optgen.bench.tensor_lists import LISTS
from optgen.bench.variants import DEFAULT, LIMIT, OURS
from website.entries import ROOT, Entry
from website.tables import table

RESULTS = ROOT / "benchmarks" / "results" / "cpu.json"
HEADER = (
    "tensors",
    "dtype",
    "threads",
    "optgen, ms",
    "of the memory limit",
    "torch's fastest ÷ optgen",
    "torch's default ÷ optgen",
)


@functools.cache
def results() -> Results:
    """Return the results that are checked in."""
    return load(RESULTS)


def machine() -> str:
    """Return the machine of the results, and how they were measured, in a sentence."""
    facts = machine_of(RESULTS)
    return (
        f"Measured on {facts['cores']} shared cores of an {facts['processor']}, {facts['system']}, "
        f"torch {facts['torch']}, Python {facts['python']}, by `python benchmarks/cpu.py`. Times "
        "are medians of repeated steps."
    )


def speed(entry: Entry) -> str:
    """Return the figures of a class as a table, and the command that measures it."""
    rows = [
        row(cell, figures)
        for cell, figures in sorted(results().items())
        if cell.part == "step" and cell.name == entry.title and cell.threads == 1
    ]
    command = f"```sh\noptgen bench {entry.name}\n```"
    if not rows:
        return f"No figures of {entry.title} are checked in. This command measures it:\n\n{command}"
    more = "[Every class on a CPU](../benchmarks/cpu.md) also has figures of two threads."
    return "\n\n".join(
        [table(HEADER, rows), f"{machine()} {more} This command measures your machine:", command]
    )


def row(cell: Cell, figures: Figures) -> tuple[str, ...]:
    """Return the row of a cell."""
    limit = ratio(figures, LIMIT)
    return (
        LISTS[cell.tensors].title,
        cell.dtype,
        str(cell.threads),
        f"{figures[OURS]['median']:.3g}",
        f"{limit:.0%}" if limit else "",
        *(
            f"{each:.1f}" if each else ""
            for each in (torch_ratio(figures), ratio(figures, DEFAULT))
        ),
    )
