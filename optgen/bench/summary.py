"""A few lines of the results, in Markdown, for a visitor."""

from collections.abc import Iterator
from textwrap import fill

from optgen.bench.compiled import COMPILED
from optgen.bench.extract import faster, mean
from optgen.bench.first_step import COLD, WARM
from optgen.bench.lists import LISTS
from optgen.bench.report import fastest, ratio
from optgen.bench.results import Cell, Figures, Results
from optgen.bench.targets import DENSE, MEAN
from optgen.bench.variants import DEFAULT, FUSED, LIMIT, OURS

_ROWS = (
    Cell("step", "AdamW", "resnet50"),
    Cell("step", "AdamW", "gpt2"),
    Cell("step", "AdamW", "2.5e7", "bfloat16"),
    Cell("step", "AdamW", "2000x256"),
    Cell("step", "RAdam", "resnet50"),
    Cell("step", "Adafactor", "resnet50"),
    Cell("step", "Rprop", "gpt2"),
)
_FIRST = Cell("first step", "AdamW", "2000x256")
_BUSY = Cell("busy", "AdamW", "2000x256", threads=2)
_HEADER = ("a step of", "optgen", "of the memory's limit", "torch's fastest", "torch's default")


def markdown(results: Results) -> str:
    """A table of some steps, the means over all, and the first step."""
    found = [row for cell in _ROWS if (row := _row(cell, results.get(cell)))]
    lines = [_HEADER, ("---",) * len(_HEADER), *found]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{fill(' '.join(_sentences(results)), 100)}".strip()


def _row(cell: Cell, figures: Figures | None) -> tuple[str, ...] | None:
    if not figures:
        return None
    ours, theirs = figures[OURS]["median"], (fastest(figures), ratio(figures, DEFAULT))
    return (
        f"{cell.name}, {LISTS[cell.tensors].title}, {cell.dtype}",
        f"{_digits(ours)} ms",
        f"{ratio(figures, LIMIT) or 0:.0%}",
        *(f"{_digits(ours * (times or 0))} ms" for times in theirs),
    )


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _sentences(results: Results) -> Iterator[str]:
    count = len(DENSE) * len(MEAN)
    whole = f"{count} of {count}"
    means = [mean(faster(DENSE, MEAN, form), count)(results) for form in (None, DEFAULT)]
    if all(whole in each for each in means):
        best, usual = (each[whole] for each in means)
        lists = ", ".join(LISTS[name].title for name in MEAN)
        yield (
            f"Over {len(DENSE)} algorithms and three lists ({lists}) torch's fastest form takes "
            f"{best:.1f} times as long as ours, its default {usual:.1f} times (geometric means)."
        )
    if first := results.get(_FIRST):
        yield (
            f"The first step of a new process, 2,000 tensors: {first[COLD]['first'] / 1e3:.1f} s "
            f"when the kernel has to be built, {first[WARM]['first']:.0f} ms when it is cached, "
            f"{first[DEFAULT]['first']:.0f} ms in torch."
        )
    if (busy := results.get(_BUSY)) and FUSED in busy:
        ours, theirs = (
            f"{_digits(busy[form]['busy'])} ms instead of {_digits(busy[form]['quiet'])}"
            for form in (OURS, FUSED)
        )
        yield (
            "On two threads, beside a process that keeps one of the cores busy, a step of 2,000 "
            f"tensors takes {ours}, and {theirs} with torch's fused form."
        )
    builds = [
        f"{figures[COMPILED]['first_s']:.0f} s ({LISTS[cell.tensors].title})"
        for cell, figures in sorted(results.items())
        if cell.part == "compile" and cell.name == "AdamW" and "first_s" in figures[COMPILED]
    ]
    if builds:
        yield f"`torch.compile(optimizer.step)` of AdamW is built in {', '.join(builds)}."
