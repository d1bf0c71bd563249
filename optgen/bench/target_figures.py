"""Extract from results the figures to compare with targets, by class and list of tensors."""

from collections.abc import Callable, Sequence
from math import exp, log
from statistics import fmean

from optgen.bench.report import ratio, torch_ratio
from optgen.bench.results import Cell, Figures, Results
from optgen.bench.variants import LIMIT
from optgen.bench.verdict import Values

Extract = Callable[[Results], Values]
Measure = Callable[[Figures], float | None]


def figures_of_steps(
    measure: Measure, names: Sequence[str], lists: Sequence[str], dtype: str = "float32"
) -> Extract:
    """Return a function that extracts one figure of each step on one thread."""

    def extract(results: Results) -> Values:
        cells = (Cell("step", name, tensors, dtype) for tensors in lists for name in names)
        values = {_label(c): measure(results[c]) for c in cells if c in results}
        return {label: value for label, value in values.items() if value is not None}

    return extract


def figures_of_part(
    part: str, measure: Callable[[Figures], float], names: Sequence[str]
) -> Extract:
    """Return a function that extracts one figure of each cell of a part, such as `memory`."""

    def extract(results: Results) -> Values:
        cells = sorted(cell for cell in results if cell.part == part and cell.name in names)
        return {_label(cell): measure(results[cell]) for cell in cells}

    return extract


def fraction_of_limit(
    names: Sequence[str], lists: Sequence[str], dtype: str = "float32"
) -> Extract:
    """Return a function that extracts the speed of steps as a fraction of the memory limit's."""
    return figures_of_steps(lambda figures: ratio(figures, LIMIT), names, lists, dtype)


def speedup(names: Sequence[str], lists: Sequence[str], form: str | None = None) -> Extract:
    """Return a function that divides torch's time by ours: a form's, or by default the fastest."""
    if form is None:
        return figures_of_steps(torch_ratio, names, lists)
    return figures_of_steps(lambda figures: ratio(figures, form), names, lists)


def geometric_mean(extract_figures: Extract, count: int) -> Extract:
    """Return a function that extracts the geometric mean of some figures, labelled "n of count"."""

    def extract(results: Results) -> Values:
        values = extract_figures(results).values()
        return {f"{len(values)} of {count}": exp(fmean(map(log, values)))} if values else {}

    return extract


def _label(cell: Cell) -> str:
    threads = f", {cell.threads} threads" if cell.threads > 1 else ""
    return f"{cell.name}, {cell.tensors}{threads}"
