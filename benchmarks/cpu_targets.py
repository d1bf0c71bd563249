"""The targets of a step on a CPU, and the verdicts on measured figures.

Only the parts `busy` and `bits` use several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

from benchmarks.cpu_first_step import COLD, WARM
from optgen.bench.report import ratio, torch_ratio
from optgen.bench.results import Cell, Figures, Results
from optgen.bench.suite import ONE_GROUP
from optgen.bench.tensor_lists import TensorList
from optgen.bench.variants import (
    CLASSES,
    DEFAULT,
    FACTORED,
    FUSED,
    LIMIT,
    OURS,
    accepted_tensors,
    class_of,
)

ELEMENTWISE = tuple(n for n in CLASSES if class_of(n).rule.elementwise)
VECTOR_CLASSES = tuple(n for n in CLASSES if accepted_tensors(n, TensorList("", "", [(1,)])).shapes)
"""The classes that take vectors. Muon takes matrices only."""
_ROOT_BOUND = ("Adagrad", "RMSprop")  # their root and division take longer than the cached reads
_LARGE_LISTS = ("2.5e7", "gpt2", "resnet50")
MEAN_LISTS = ("2.5e7", "resnet50", "2000x256")
_TINY_LISTS = ("2000x256",)


def targets(*, converts_bfloat16: bool) -> tuple[Target, ...]:
    """Return all targets, for a processor with or without bfloat16 conversion in hardware."""
    return (
        *_float32_targets(),
        *_phase_targets(),
        *(_targets_with_bfloat16() if converts_bfloat16 else _targets_without_bfloat16()),
        *_many_tensor_targets(),
        *_other_targets(),
    )


def _float32_targets() -> Iterator[Target]:
    yield Target(
        "of the limit, 2.5e7 and GPT-2", fraction_of_limit(ELEMENTWISE, ["2.5e7", "gpt2"]), 0.95
    )
    yield Target("of the limit, ResNet-50", fraction_of_limit(ELEMENTWISE, ["resnet50"]), 0.9)
    yield Target("against torch's fused, large lists", speedup(ELEMENTWISE, _LARGE_LISTS, FUSED), 1)
    others = tuple(name for name in ELEMENTWISE if name not in _ROOT_BOUND)
    yield Target("of the limit, 1e6", fraction_of_limit(others, ["1e6"]), 0.75)
    yield Target(
        f"of the limit, 1e6: {', '.join(_ROOT_BOUND)}", fraction_of_limit(_ROOT_BOUND, ["1e6"]), 0.7
    )


def _phase_targets() -> Iterator[Target]:
    yield Target(
        "phases: of their limit, 2.5e7, GPT-2", fraction_of_limit(FACTORED, ["2.5e7", "gpt2"]), 0.75
    )
    yield Target(
        "phases: of their limit, ResNet-50", fraction_of_limit(FACTORED, ["resnet50"]), 0.5
    )
    yield Target(
        "phases: of their limit, thin matrices", fraction_of_limit(FACTORED, ["thin"]), 0.5
    )
    yield Target("phases: times faster than torch, 2.5e7", speedup(FACTORED, ["2.5e7"]), 6)
    yield Target("phases: times faster than torch, ResNet-50", speedup(FACTORED, ["resnet50"]), 12)


def _targets_with_bfloat16() -> Iterator[Target]:
    yield _bfloat16_target("2.5e7", ELEMENTWISE, 0.9)
    least_by_names = {
        ("SGD", "ASGD"): 0.8,
        ("Adamax",): 0.65,
        ("AdamW", "RAdam", "NAdam", "Rprop"): 0.5,
    }
    for names, least in least_by_names.items():
        yield _bfloat16_target("1e6", names, least)
    others = tuple(n for n in ELEMENTWISE if not any(n in names for names in least_by_names))
    yield _bfloat16_target("1e6", others, 0.42)


def _targets_without_bfloat16() -> Iterator[Target]:
    yield _bfloat16_target("2.5e7", ELEMENTWISE, 0.9)
    yield _bfloat16_target("1e6", ELEMENTWISE, 0.3)


def _bfloat16_target(tensors: str, names: tuple[str, ...], least: float) -> Target:
    class_list = "" if names == ELEMENTWISE else f": {', '.join(names)}"
    return Target(
        f"of the limit, bfloat16, {tensors}{class_list}",
        fraction_of_limit(names, [tensors], "bfloat16"),
        least,
    )


def _many_tensor_targets() -> Iterator[Target]:
    least_by_names = {("AdamW", "Adam"): 12, ("Adagrad",): 15, ("SGD",): 5}
    for names, least in least_by_names.items():
        title = f"times faster than torch's fused, 2000x256: {', '.join(names)}"
        yield Target(title, speedup(names, _TINY_LISTS, FUSED), least)
    rest = [name for name in VECTOR_CLASSES if not any(name in names for names in least_by_names)]
    yield Target("times faster than torch, 2000x256: the rest", speedup(rest, _TINY_LISTS), 20)
    yield Target(
        "20 groups, times one group",
        figures_of_steps(_slowdown_by_groups, VECTOR_CLASSES, ["20groups"]),
        most=1.2,
    )
    count = len(VECTOR_CLASSES) * len(MEAN_LISTS)
    for least, title, form in ((6, "fastest", None), (10, "default", DEFAULT)):
        mean = geometric_mean(speedup(VECTOR_CLASSES, MEAN_LISTS, form), count)
        yield Target(f"geometric mean against torch's {title}", mean, least)


def _other_targets() -> Iterator[Target]:
    yield Target(
        "first step, cold: s", figures_of_part("first step", _cold_seconds, VECTOR_CLASSES), most=1
    )
    yield Target(
        "first step, warm: ms over a plain one",
        figures_of_part("first step", _warm_overhead, VECTOR_CLASSES),
        most=10,
    )
    title = "first step, warm: ms over a plain one and memory for states"
    yield Target(
        title, figures_of_part("first step", _warm_overhead_without_states, VECTOR_CLASSES), most=10
    )
    yield Target(
        "beside a busy process, times alone",
        figures_of_part("busy", _busy_slowdown, VECTOR_CLASSES),
        most=3,
    )
    yield Target(
        "peak extra memory: MB", figures_of_part("memory", _megabytes, ELEMENTWISE), most=1
    )
    yield Target(
        "peak, with column sums: MB", figures_of_part("memory", _megabytes, FACTORED), most=16
    )
    yield Target(
        "tensors that threads change",
        figures_of_part("bits", _different_tensors, VECTOR_CLASSES),
        most=0,
    )


def _slowdown_by_groups(figures: Figures) -> float:
    return float(figures[OURS]["median"] / figures[ONE_GROUP]["median"])


def _cold_seconds(figures: Figures) -> float:
    return float(figures[COLD]["first"] / 1e3)


def _warm_overhead(figures: Figures) -> float:
    return float(figures[WARM]["first"] - figures[WARM]["plain"])


def _warm_overhead_without_states(figures: Figures) -> float:
    return _warm_overhead(figures) - float(figures[WARM]["states"])


def _busy_slowdown(figures: Figures) -> float:
    return float(figures[OURS]["busy"] / figures[OURS]["quiet"])


def _megabytes(figures: Figures) -> float:
    return float(figures[OURS]["bytes"] / 1e6)


def _different_tensors(figures: Figures) -> float:
    return float(figures[OURS]["different"])


def targets_of_machine(machine: Mapping[str, object]) -> tuple[Target, ...]:
    """Return the targets for the machine that results were measured on."""
    return targets(converts_bfloat16=bool(machine.get("converts_bfloat16")))


Values = Mapping[str, float]
"""Figures by class and list: "AdamW, 1e6"."""


@dataclass(frozen=True)
class Target:
    """A bound that each of some figures must meet: at least `least`, or at most `most`."""

    title: str
    extract_values: Callable[[Results], Values]
    least: float | None = None
    most: float | None = None

    @property
    def bound(self) -> str:
        """The bound as text, with its sign."""
        return f"≤ {self.most:g}" if self.least is None else f"≥ {self.least:g}"

    def admits(self, value: float) -> bool:
        """Tell whether a figure meets the bound. NaN does not."""
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )

    def judge(self, results: Results) -> Verdict:
        """Compare results with the target."""
        return Verdict(self, dict(self.extract_values(results)))


@dataclass(frozen=True)
class Verdict:
    """A target and the figures measured for it."""

    target: Target
    values: Values

    @property
    def missed_figures(self) -> Sequence[str]:
        """The names of the figures that miss the target."""
        return [name for name, value in self.values.items() if not self.target.admits(value)]

    @property
    def worst_figure(self) -> str:
        """The name of the figure that misses the bound by most, or comes closest to missing it."""
        if not self.values:
            return ""
        choose = max if self.target.least is None else min
        return choose(self.values, key=self.values.__getitem__)

    @property
    def summary(self) -> str:
        """The verdict as text: reached, missed or not measured, with the number of figures."""
        if not self.values:
            return "not measured"
        if not self.missed_figures:
            return "reached" if len(self.values) == 1 else f"reached by {len(self.values)}"
        return (
            "missed"
            if len(self.values) == 1
            else f"missed: {len(self.missed_figures)}/{len(self.values)}"
        )


def verdicts(targets: Sequence[Target], results: Results) -> list[Verdict]:
    """Return the verdict on each target."""
    return [target.judge(results) for target in targets]


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
