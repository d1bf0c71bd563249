"""What figures are held to: a target is data, and so is whether it is reached."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from optgen.bench.results import Results

Values = Mapping[str, float]
"""Figures by what they are of: "AdamW, 1e6"."""


@dataclass(frozen=True)
class Target:
    """What is wanted of every one of some figures: `least`, or `most`."""

    title: str
    values: Callable[[Results], Values]
    least: float | None = None
    most: float | None = None

    @property
    def wanted(self) -> str:
        """The bound, with its sign."""
        return f"≤ {self.most:g}" if self.least is None else f"≥ {self.least:g}"

    def admits(self, value: float) -> bool:
        """Whether a figure is as wanted; NaN never is."""
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )

    def judge(self, results: Results) -> "Verdict":
        """Hold results to it."""
        return Verdict(self, dict(self.values(results)))


@dataclass(frozen=True)
class Verdict:
    """A target and the figures that were measured of it."""

    target: Target
    values: Values

    @property
    def missed(self) -> Sequence[str]:
        """What misses the target."""
        return [name for name, value in self.values.items() if not self.target.admits(value)]

    @property
    def worst(self) -> str:
        """What is farthest from the bound, or nearest to missing it."""
        if not self.values:
            return ""
        choose = max if self.target.least is None else min
        return choose(self.values, key=self.values.__getitem__)

    @property
    def word(self) -> str:
        """Reached or missed and by how many of those measured, or not measured."""
        if not self.values:
            return "not measured"
        if not self.missed:
            return "reached" if len(self.values) == 1 else f"reached by {len(self.values)}"
        return (
            "missed" if len(self.values) == 1 else f"missed: {len(self.missed)}/{len(self.values)}"
        )


def verdicts(targets: Sequence[Target], results: Results) -> list[Verdict]:
    """One for each target."""
    return [target.judge(results) for target in targets]
