"""`optgen bench`: this machine's figures against torch.optim, in one process.

Each round steps every variant once, in a new order; a figure is the median over the rounds.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import typer

import optgen.optim
from optgen.cli.catalogue import columns
from optgen.spec.read import module_name

_LISTS = {
    "1 tensor of 1,000,000": [1_000_000],
    "100 tensors of 10,000": [10_000] * 100,
    "2,000 tensors of 256": [256] * 2000,
}
_TORCH: dict[str, dict[str, Any]] = {
    "torch for-loop": {"foreach": False},
    "torch foreach": {"foreach": True},
    "torch fused": {"fused": True},
}
_OURS = "optgen"
Figures = dict[str, float]


def run(names: Sequence[str], plot: Path, seconds: float) -> None:
    """Measure, print a table, and draw it where matplotlib is installed."""
    classes = [n for n in optgen.optim.__all__ if _is_optimizer(n) and _takes_vectors(n)]
    modules = {module_name(name): name for name in classes}
    for name in names:
        if module_name(name) not in modules:
            measurable = ", ".join(classes)
            raise typer.BadParameter(f"no class {name} to measure; there are {measurable}")
    measured: dict[tuple[str, str], Figures] = {}
    for name in [modules[module_name(name)] for name in names] or classes:
        for title, sizes in _LISTS.items():
            typer.echo(f"measuring {name}, {title} …", err=True)
            measured[name, title] = measure(_variants(name, sizes), seconds)
    typer.echo(f"ms per step, median; CPU, float32, {torch.get_num_threads()} thread(s)")
    typer.echo(
        columns(
            [
                ("class", "tensors", *(_OURS, *_TORCH), "faster"),
                *map(_row, *zip(*measured.items(), strict=True)),
            ]
        )
    )
    if _draw(measured, plot):
        typer.echo(f"plot: {plot}")


def measure(variants: dict[str, Callable[[], object]], seconds: float) -> Figures:
    """Milliseconds per call of each variant: the median over interleaved, shuffled rounds."""
    for call in variants.values():
        for _ in range(3):
            call()
    order = random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in variants}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[_OURS]) < 5:
        for name in order.sample(list(variants), len(variants)):
            start = time.perf_counter()
            variants[name]()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) * 1e3 for name, found in times.items()}


def _is_optimizer(name: str) -> bool:
    value = getattr(optgen.optim, name)
    return isinstance(value, type) and value is not torch.optim.Optimizer


def _takes_vectors(name: str) -> bool:
    """Tell whether a class steps on vectors: dense gradients, any shape, and no closure."""
    try:
        _stepper(getattr(optgen.optim, name), [1], fused=False)()
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


def _variants(name: str, sizes: Sequence[int]) -> dict[str, Callable[[], object]]:
    """A step of our class as it comes, and of torch's in each of its implementations."""
    variants = {_OURS: _stepper(getattr(optgen.optim, name), sizes)}
    for title, options in _TORCH.items():
        try:
            variants[title] = _stepper(getattr(torch.optim, name), sizes, **options)
        except TypeError:  # torch has no fused form of this one
            continue
    return variants


def _stepper(
    cls: type[torch.optim.Optimizer], sizes: Sequence[int], **options: Any
) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(n, generator=generator)) for n in sizes]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return cls(parameters, **options).step


def _row(key: tuple[str, str], figures: Figures) -> tuple[str, ...]:
    cells = [f"{figures[v]:.3f}" if v in figures else "-" for v in (_OURS, *_TORCH)]
    return (*key, *cells, f"{_gain(figures):.1f}x")


def _gain(figures: Figures) -> float:
    """How many times faster than torch's best."""
    return min(figures[v] for v in figures if v != _OURS) / figures[_OURS]


def _draw(measured: dict[tuple[str, str], Figures], path: Path) -> bool:
    try:
        import matplotlib
    except ModuleNotFoundError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(name for name, _ in measured))
    figure, axes = pyplot.subplots(figsize=(9, 4), layout="constrained")
    width = 0.8 / len(_LISTS)
    for i, title in enumerate(_LISTS):
        gains = [_gain(measured[name, title]) for name in names]
        axes.bar([x + i * width for x in range(len(names))], gains, width, label=title)
    axes.axhline(1, color="black", linewidth=1)
    axes.set_xticks([x + width for x in range(len(names))], names)
    axes.set_yscale("log")
    axes.set_ylabel("times faster than torch's best")
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True
