"""Plot the time of a step as a multiple of the memory limit.

Each algorithm has a line on a logarithmic scale, from our time to that of torch's default form.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optgen.bench.report import ratio, torch_ratio
from optgen.bench.results import Cell, Figures, Results
from optgen.bench.tensor_lists import LISTS
from optgen.bench.variants import DEFAULT, LIMIT

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
            _multiple(best_time / our_time),
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


def _multiple(multiple: float) -> str:
    return f"{multiple:.1f}×" if multiple < 10 else f"{multiple:.0f}×"


def _multiples_of_limit(figures: Figures) -> tuple[float, float, float]:
    """Return the times of ours, torch's fastest form and its default, in units of the limit."""
    limit = ratio(figures, LIMIT) or 1
    return 1 / limit, (torch_ratio(figures) or 0) / limit, (ratio(figures, DEFAULT) or 0) / limit
