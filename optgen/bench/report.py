"""Format results as lines and as rows of tables."""

from collections.abc import Iterator, Mapping, Sequence

from optgen.bench.results import Cell, Figures, Results
from optgen.bench.variants import DEFAULT, LIMIT, OURS, UNFUSED
from optgen.bench.verdict import Verdict

_STEP_HEADER = ("class", "tensors", "type", "threads", "ms", "cold ms", "of limit")


def line(cell: Cell, figures: Figures) -> str:
    """Return the line for a cell of any part of the benchmark."""
    return f"{cell}: " + (_step_text(figures) if cell.part == "step" else _all_figures(figures))


def steps_table(results: Results) -> Iterator[tuple[str, ...]]:
    """Yield a header, then a row for each step: our times, and others as multiples of ours."""
    other_lowerings = [
        title for title in UNFUSED if any(title in each for each in results.values())
    ]
    has_torch = any(torch_ratio(each) for cell, each in results.items() if cell.part == "step")
    yield (
        *_STEP_HEADER,
        *(("torch's fastest", "torch's default") if has_torch else ()),
        *other_lowerings,
    )
    for cell, figures in results.items():
        if cell.part == "step":
            ours = figures[OURS]
            yield (
                *(cell.name, cell.tensors, cell.dtype, str(cell.threads)),
                *(f"{ours[key]:.3g}" for key in ("median", "cold")),
                _fraction_of_limit(figures) or "-",
                *map(
                    _multiple, (torch_ratio(figures), ratio(figures, DEFAULT)) if has_torch else ()
                ),
                *(_multiple(ratio(figures, title)) for title in other_lowerings),
            )


def verdict_table(verdicts: Sequence[Verdict]) -> Iterator[tuple[str, ...]]:
    """Yield a row for every target, with its worst figure and whether it is met."""
    yield ("what", "worst", "of", "wanted", "")
    for each in verdicts:
        worst = each.worst_figure
        measured = f"{each.values[worst]:.3g}" if worst else "-"
        yield (each.target.title, measured, worst, each.target.bound, each.summary)


def missed_target_lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield a line for each missed target, with the figures that miss it."""
    for each in verdicts:
        if each.missed_figures:
            figures = (f"{name} {each.values[name]:.3g}" for name in each.missed_figures)
            yield f"{each.target.title}, wanted {each.target.bound}: {'; '.join(figures)}"


def torch_ratio(figures: Figures) -> float | None:
    """Return the time of torch's fastest form divided by ours; None if none was measured."""
    times = [each["median"] for title, each in figures.items() if title.startswith("torch ")]
    return min(times) / figures[OURS]["median"] if times else None


def ratio(figures: Figures, title: str, key: str = "median") -> float | None:
    """Return the time of a variant divided by ours; None if it was not measured."""
    return figures[title][key] / figures[OURS][key] if title in figures else None


def _step_text(figures: Figures) -> str:
    parts = [f"{figures[OURS]['median']:.3g} ms"]
    if of_limit := _fraction_of_limit(figures):
        parts.append(f"{of_limit} of the limit")
    other_titles = (title for title in figures if title not in (OURS, LIMIT))
    return " | ".join(
        [*parts, *(f"{title} {_multiple(ratio(figures, title))}" for title in other_titles)]
    )


def _fraction_of_limit(figures: Figures) -> str:
    """Return our speed as a fraction of the limit's: by medians, and in brackets by minima."""
    fractions = (ratio(figures, LIMIT, key) for key in ("median", "min"))
    return "{:.2f} ({:.2f})".format(*fractions) if LIMIT in figures else ""


def _multiple(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}x" if value < 100 else f"{value:.0f}x"


def _all_figures(figures: Figures) -> str:
    return " | ".join(
        f"{title} {_figure_texts(variant_figures)}" for title, variant_figures in figures.items()
    )


def _figure_texts(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
