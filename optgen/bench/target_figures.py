"""The figures that targets are about, taken out of results: by class and list."""

from collections.abc import Callable, Sequence
from math import exp, log
from statistics import fmean

from optgen.bench.report import fastest, ratio
from optgen.bench.results import Cell, Figures, Results
from optgen.bench.variants import LIMIT
from optgen.bench.verdict import Values

Extract = Callable[[Results], Values]
Measure = Callable[[Figures], float | None]


def steps(
    measure: Measure, names: Sequence[str], lists: Sequence[str], dtype: str = "float32"
) -> Extract:
    """A figure of the steps of some classes on some lists, on one thread."""

    def extract(results: Results) -> Values:
        cells = (Cell("step", name, tensors, dtype) for tensors in lists for name in names)
        found = {_label(c): measure(results[c]) for c in cells if c in results}
        return {label: value for label, value in found.items() if value is not None}

    return extract


def part(name: str, measure: Callable[[Figures], float], names: Sequence[str]) -> Extract:
    """A figure of all that was measured of another part."""

    def extract(results: Results) -> Values:
        cells = sorted(cell for cell in results if cell.part == name and cell.name in names)
        return {_label(cell): measure(results[cell]) for cell in cells}

    return extract


def of_limit(names: Sequence[str], lists: Sequence[str], dtype: str = "float32") -> Extract:
    """What fraction of the memory's limit a step reaches."""
    return steps(lambda figures: ratio(figures, LIMIT), names, lists, dtype)


def faster(names: Sequence[str], lists: Sequence[str], form: str | None = None) -> Extract:
    """How many times longer torch takes: in its fastest form, or in one where there is that."""
    if form is None:
        return steps(fastest, names, lists)
    return steps(lambda figures: ratio(figures, form), names, lists)


def mean(several: Extract, count: int) -> Extract:
    """Their geometric mean, of so many figures."""

    def extract(results: Results) -> Values:
        values = several(results).values()
        return {f"{len(values)} of {count}": exp(fmean(map(log, values)))} if values else {}

    return extract


def _label(cell: Cell) -> str:
    threads = f", {cell.threads} threads" if cell.threads > 1 else ""
    return f"{cell.name}, {cell.tensors}{threads}"
