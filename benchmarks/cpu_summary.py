"""Summarize results in Markdown, for the README."""

from collections.abc import Iterator
from textwrap import fill

from benchmarks.cpu_first_step import COLD, WARM
from benchmarks.cpu_targets import MEAN_LISTS, VECTOR_CLASSES, geometric_mean, speedup
from optgen.bench.report import ratio, torch_ratio
from optgen.bench.results import Cell, Figures, Results
from optgen.bench.suite import COMPILED
from optgen.bench.tensor_lists import LISTS
from optgen.bench.variants import DEFAULT, FUSED, LIMIT, OURS

_TABLE_CELLS = (
    Cell("step", "AdamW", "resnet50"),
    Cell("step", "AdamW", "gpt2"),
    Cell("step", "AdamW", "2.5e7", "bfloat16"),
    Cell("step", "AdamW", "2000x256"),
    Cell("step", "RAdam", "resnet50"),
    Cell("step", "Adafactor", "resnet50"),
    Cell("step", "Rprop", "gpt2"),
)
_FIRST_STEP_CELL = Cell("first step", "AdamW", "2000x256")
_BUSY_CELL = Cell("busy", "AdamW", "2000x256", threads=2)
_HEADER = (
    "a step of",
    "optgen",
    "optgen's speed, in % of the memory limit",
    "torch's fastest form",
    "torch's default form",
)


def markdown(results: Results) -> str:
    """Return a table of some steps, and list items about means, first steps and a busy machine."""
    rows = [row for cell in _TABLE_CELLS if (row := _row(cell, results.get(cell)))]
    lines = [_HEADER, ("---",) * len(_HEADER), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    wrapped_items = (
        fill(f"- {item}", 100, subsequent_indent="  ") for item in _list_items(results)
    )
    return "\n".join([table, "", *wrapped_items]).strip()


def _row(cell: Cell, figures: Figures | None) -> tuple[str, ...] | None:
    if not figures:
        return None
    ours, ratios = figures[OURS]["median"], (torch_ratio(figures), ratio(figures, DEFAULT))
    return (
        f"{cell.name}, {LISTS[cell.tensors].title}, {cell.dtype}",
        f"{_digits(ours)} ms",
        f"{ratio(figures, LIMIT) or 0:.0%}",
        *(f"{_digits(ours * (torch_over_ours or 0))} ms" for torch_over_ours in ratios),
    )


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _list_items(results: Results) -> Iterator[str]:
    count = len(VECTOR_CLASSES) * len(MEAN_LISTS)
    complete_label = f"{count} of {count}"  # the label of a mean if no figure is missing
    means = [
        geometric_mean(speedup(VECTOR_CLASSES, MEAN_LISTS, form), count)(results)
        for form in (None, DEFAULT)
    ]
    if all(complete_label in each for each in means):
        best, default = (each[complete_label] for each in means)
        lists = ", ".join(LISTS[name].title for name in MEAN_LISTS)
        yield (
            f"On {len(VECTOR_CLASSES)} algorithms and three lists of tensors ({lists}), torch's "
            f"fastest form takes {best:.1f} times as long as optgen, and torch's default form "
            f"{default:.1f} times as long (geometric means)."
        )
    if first := results.get(_FIRST_STEP_CELL):
        yield (
            "The first step of a new process on 2,000 tensors takes "
            f"{first[COLD]['first'] / 1e3:.1f} s if the kernel has to be built, and "
            f"{first[WARM]['first']:.0f} ms if the kernel is in the cache. "
            f"torch's default form takes {first[DEFAULT]['first']:.0f} ms."
        )
    if (busy := results.get(_BUSY_CELL)) and FUSED in busy:
        our_times, torch_times = (
            f"{_digits(busy[form]['quiet'])} ms alone, and {_digits(busy[form]['busy'])} ms"
            for form in (OURS, FUSED)
        )
        yield (
            f"On two threads, a step of 2,000 tensors takes {our_times} while another process "
            f"keeps one of the cores busy. torch's fused form takes {torch_times} beside that "
            "process."
        )
    yield from _compile_items(results)


def _compile_items(results: Results) -> Iterator[str]:
    builds = [
        f"{figures[COMPILED]['first_s']:.0f} s ({LISTS[cell.tensors].title})"
        for cell, figures in sorted(results.items())
        if cell.part == "compile" and cell.name == "AdamW" and "first_s" in figures[COMPILED]
    ]
    if builds:
        yield (
            "With `torch.compile(optimizer.step)`, the first step of torch's AdamW takes "
            f"{', '.join(builds)}."
        )
