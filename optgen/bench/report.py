"""Results as lines, as rows of tables, and as a picture.

The picture shows the time of a step as a multiple of the memory limit. Each algorithm has a line on
a logarithmic scale, from our time to that of torch's default form.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from optgen.bench.results import Cell, Figures, Results
from optgen.bench.tensor_lists import LISTS
from optgen.bench.variants import DEFAULT, LIMIT, OURS, UNFUSED

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


PANELS = {
    "resnet50": "ResNet-50: 25 million parameters",
    "gpt2": "GPT-2 small: 124 million parameters",
    "2000x256": "2,000 tensors of 256",
}
_GREEN, _ORANGE, _GREY = "#0b6e4f", "#f28e2b", "#b8bcc2"


def draw(results: Results, path: Path, dtype: str = "float32", threads: int = 1) -> bool:
    """Draw the panels for which there are results; return False if nothing can be drawn."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return False
    panels = {
        tensors: figures_by_name
        for tensors in PANELS
        if (figures_by_name := _figures_by_name(results, tensors, dtype, threads))
    }
    if not panels:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = sorted(
        {n for figures_by_name in panels.values() for n in figures_by_name},
        key=str.lower,
        reverse=True,
    )
    width, height = 3.7 * len(panels), 1.3 + 0.28 * len(names)  # inches
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(width, height), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, (tensors, figures_by_name) in zip(axes[0], panels.items(), strict=True):
        _draw_panel(axis, names, figures_by_name)
        axis.set_title(PANELS[tensors], fontsize=10, loc="left")
    axes[0][0].set_yticks(range(len(names)), names)
    title = f"Time of a step as a multiple of the memory limit: CPU, {dtype}, {threads} thread"
    figure.suptitle(title + "s" * (threads > 1), fontsize=11, fontweight="bold")
    handles, labels = axes[0][0].get_legend_handles_labels()
    handles.append(matplotlib.lines.Line2D([], [], linestyle=""))
    labels.append("3.0×: torch's fastest takes 3.0 times as long as optgen")
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return True


def _figures_by_name(
    results: Results, tensors: str, dtype: str, threads: int
) -> dict[str, Figures]:
    """Return the figures of the classes that were measured on a list of tensors."""
    assert tensors in LISTS
    return {
        cell.name: figures
        for cell, figures in results.items()
        if cell == Cell("step", cell.name, tensors, dtype, threads)
        and LIMIT in figures
        and DEFAULT in figures
    }


def _draw_panel(axis: Any, names: Sequence[str], figures_by_name: dict[str, Figures]) -> None:
    """Draw one list of tensors, with a line for each algorithm."""
    heights = [height for height, name in enumerate(names) if name in figures_by_name]
    rows = [_multiples_of_limit(figures_by_name[name]) for name in names if name in figures_by_name]
    ours, best, default = zip(*rows, strict=True)
    axis.axvline(1, color="#444444", linewidth=1, zorder=1, label="memory limit")
    axis.hlines(heights, ours, default, color="#dfe2e6", linewidth=3, zorder=1)
    for values, color, label, size in (
        (default, _GREY, "torch's default", 30),
        (best, _ORANGE, "torch's fastest", 34),
        (ours, _GREEN, "optgen", 44),
    ):
        axis.scatter(values, heights, s=size, color=color, label=label, zorder=3)
    for height, our_time, best_time, default_time in zip(heights, ours, best, default, strict=True):
        axis.annotate(
            _factor(best_time / our_time),
            (max(default_time, best_time), height),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            fontweight="bold",
            color="#333333",
        )
    axis.set_xscale("log")
    axis.set_xlim(0.7, 2.2 * max(default))
    axis.xaxis.set_major_formatter(lambda value, position: f"{value:g}×")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)


def _factor(multiple: float) -> str:
    return f"{multiple:.1f}×" if multiple < 10 else f"{multiple:.0f}×"


def _multiples_of_limit(figures: Figures) -> tuple[float, float, float]:
    """Return the times of ours, torch's fastest form and its default, in units of the limit."""
    limit = ratio(figures, LIMIT) or 1
    return 1 / limit, (torch_ratio(figures) or 0) / limit, (ratio(figures, DEFAULT) or 0) / limit
