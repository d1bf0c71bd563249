"""Draw the curves of several results, and print their last losses."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

from examples.track3.baselines import BASELINES
from examples.track3.results import RESULTS
from examples.track3.saved_runs import SavedRuns


def title(name: str) -> str:
    """Return the title of a result or a baseline."""
    if name in BASELINES:
        return BASELINES[name].title
    return f"{RESULTS[name].title} (#{RESULTS[name].number})"


def standard_deviation(values: list[float]) -> float:
    """Return the standard deviation: 0 for one value, infinity if a run diverged."""
    if not all(map(math.isfinite, values)):
        return math.inf
    return statistics.stdev(values) if len(values) > 1 else 0.0


def table(saved: SavedRuns) -> str:
    """Return the last losses as a Markdown table, lowest first."""
    rows = []
    for name in dict.fromkeys(run.name for run in saved.runs):
        runs = saved.runs_of(name)
        losses = [run.last_loss(saved.setup) for run in runs]
        mean = statistics.mean(losses)
        rate = f"{runs[0].lr:g}" if runs[0].lr else "as logged"
        cells = (f"{mean:.3f} ± {standard_deviation(losses):.3f}", f"{len(runs)}", rate)
        rows.append((mean, f"| {title(name)} | {' | '.join(cells)} |"))
    head = "| optimizer | last validation loss | seeds | learning rate |"
    return "\n".join([head, "|---|---|---|---|", *(row for _, row in sorted(rows))])


def draw(saved: SavedRuns, path: Path) -> None:
    """Draw the mean of each result's losses over its seeds, with their standard deviation."""
    try:
        import matplotlib
    except ImportError:
        print("no curves: matplotlib is missing; pip install matplotlib")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(9, 6), layout="constrained")
    for name in dict.fromkeys(run.name for run in saved.runs):
        runs = [r for r in saved.runs_of(name) if r.steps[-1:] == [saved.setup.steps]]
        if not runs:
            continue
        means, bars = [], []
        for losses in zip(*(run.losses for run in runs), strict=True):
            means.append(statistics.mean(losses))
            bars.append(standard_deviation(list(losses)))
        style = "--" if name in BASELINES else "-"
        label = f"{title(name)}: {means[-1]:.3f}"
        panel.errorbar(runs[0].steps, means, bars, linestyle=style, capsize=2, label=label)
    panel.set(xlabel="step", ylabel="validation loss, nats per byte", yscale="log")
    panel.grid(alpha=0.3, which="both")
    panel.legend()
    panel.set_title("A toy: mean and standard deviation over the seeds")
    figure.savefig(path, dpi=110)
    print(f"curves: {path}")
