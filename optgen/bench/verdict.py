"""Compare figures with targets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from optgen.bench.results import Results

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

    def judge(self, results: Results) -> "Verdict":
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
