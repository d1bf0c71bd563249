"""Check a schedule of C++ passes: each step must read the version that the rule means.

A value's version is the index of the step that computed it, or -1 for a stream before the step.
Values of a tile are forgotten after each pass; all other values last for the step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from optgen.ir.binding_times import Axes
from optgen.lowerings.fused_cpu.pass_schedule import (
    WHOLE_COLUMNS,
    WHOLE_MATRICES,
    WHOLE_ROWS,
    Pass,
)
from optgen.lowerings.fused_cpu.step import Step

TILED_AXES: Mapping[str, Collection[Axes]] = {
    "WHOLE_MATRICES": WHOLE_MATRICES,
    "WHOLE_ROWS": WHOLE_ROWS,
    "WHOLE_COLUMNS": WHOLE_COLUMNS,
    "EXACT_MATRICES": WHOLE_MATRICES,
    "EXACT_ROWS": WHOLE_ROWS,
    "EXACT_COLUMNS": WHOLE_COLUMNS,
    "SPLIT": (Axes.TENSOR,),
}
"""For each tiling strategy, the axes whose values lie completely in one tile."""


def wrong_reads(
    steps: Sequence[Step],
    axes: Mapping[str, Axes],
    streams: Collection[str],
    strategies: Mapping[str, Sequence[Pass]],
) -> Iterator[str]:
    """Yield a message for each step that would read a wrong version, in any strategy."""
    for name, passes in strategies.items():
        if passes:
            schedule = _Schedule(name, steps, axes, streams)
            for number, scheduled_pass in enumerate(passes):
                yield from schedule.run(number, scheduled_pass)
            yield from schedule.wrong_stores()


@dataclass
class _Schedule:
    """The versions of all values while the passes of a schedule run."""

    name: str
    steps: Sequence[Step]
    axes: Mapping[str, Axes]
    streams: Collection[str]
    # Versions of values that outlast a tile, and of the streams in memory.
    untiled: dict[str, int] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.memory = dict.fromkeys(self.streams, -1)
        self.untiled = {n: -1 for n in self.streams if not self._in_tiles(n)}

    def run(self, number: int, scheduled_pass: Pass) -> Iterator[str]:
        """Run a pass on every tile, then its finish steps, then its stores."""
        tile: dict[str, int] = {}
        on_tiles = sorted(map(self.steps.index, scheduled_pass.steps))
        finish = sorted(map(self.steps.index, scheduled_pass.finish))
        for index in on_tiles:
            yield from self._wrong_reads(number, index, tile)
            tile |= {n: index for n in self.steps[index].writes if self._in_tiles(n)}
        for index in sorted({*on_tiles, *finish}):
            if index in finish:
                yield from self._wrong_reads(number, index, {})
            step = self.steps[index]
            computed = [n for n in (*step.writes, *step.numbers_written) if not self._in_tiles(n)]
            self.untiled |= dict.fromkeys(computed, index)
        for name in scheduled_pass.stores:
            versions = tile if self._in_tiles(name) else self.untiled
            if name not in versions:
                yield f"{self.name}, pass {number}: stores {name}, which it does not compute"
            self.memory[name] = versions.get(name, -1)

    def _wrong_reads(self, number: int, index: int, tile: Mapping[str, int]) -> Iterator[str]:
        step = self.steps[index]
        for name in (*step.reads, *step.numbers_read):
            if self._in_tiles(name):
                found = tile.get(name, self.memory.get(name))
            else:
                found = self.untiled.get(name)
            expected = self._expected_version(index, name)
            if found != expected:
                where = f"{self.name}, pass {number}, step {step.name}"
                yield f"{where}: reads version {found} of {name}, not {expected}"

    def _expected_version(self, index: int, name: str) -> int:
        """Return the version that a step reads if the steps run in their order."""
        before = enumerate(self.steps[:index])
        return max((i for i, s in before if name in (*s.writes, *s.numbers_written)), default=-1)

    def wrong_stores(self) -> Iterator[str]:
        """Yield a message for each stream whose last version is not stored at the end."""
        for name, found in self.memory.items():
            expected = self._expected_version(len(self.steps), name)
            if found != expected:
                yield f"{self.name}: version {found} of {name} is stored, not {expected}"

    def _in_tiles(self, name: str) -> bool:
        return name in self.axes and self.axes[name] in TILED_AXES[self.name]
