"""Check a schedule of C++ passes: each step must read the values that it would read without passes.

A step here is one of the rule's computations, not the optimizer's step. A value's version is the
index of the step that computed it, or -1 for a stream before the first step. Values of a tile are
forgotten after each pass; all other values last until the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from optgen.ir.kinds import Axes
from optgen.lowerings.fused_cpu.kernel_steps import Step
from optgen.lowerings.fused_cpu.pass_schedule import TILE_AXES, Pass

TILED_AXES: Mapping[str, Collection[Axes]] = {
    **{f"{kind}_{tile}": axes for tile, axes in TILE_AXES.items() for kind in ("WHOLE", "EXACT")},
    "SPLIT": (Axes.TENSOR,),
}
"""For each tiling strategy, the axes whose values lie completely in one tile."""


def wrong_reads_and_stores(
    steps: Sequence[Step],
    axes: Mapping[str, Axes],
    streams: Collection[str],
    passes_by_strategy: Mapping[str, Sequence[Pass]],
) -> Iterator[str]:
    """Yield a message for each wrong version that a step reads or a pass stores."""
    for strategy, passes in passes_by_strategy.items():
        if passes:
            schedule = _Schedule(strategy, steps, axes, streams)
            for number, scheduled_pass in enumerate(passes):
                yield from schedule.run(number, scheduled_pass)
            yield from schedule.wrong_stores()


@dataclass
class _Schedule:
    """The versions of all values while the passes of a schedule run."""

    strategy: str
    steps: Sequence[Step]
    axes: Mapping[str, Axes]
    streams: Collection[str]
    untiled: dict[str, int] = field(default_factory=dict)  # of values that outlast a tile
    memory: dict[str, int] = field(default_factory=dict)  # of the streams in memory

    def __post_init__(self) -> None:
        self.memory = dict.fromkeys(self.streams, -1)
        self.untiled = {n: -1 for n in self.streams if not self._in_tiles(n)}

    def run(self, number: int, scheduled_pass: Pass) -> Iterator[str]:
        """Run a pass on every tile, then its other steps, then its stores."""
        tile: dict[str, int] = {}
        steps_on_tiles = sorted(map(self.steps.index, scheduled_pass.on_tiles))
        steps_after_tiles = sorted(map(self.steps.index, scheduled_pass.after_tiles))
        for index in steps_on_tiles:
            yield from self._wrong_reads(number, index, tile)
            tile |= {n: index for n in self.steps[index].writes if self._in_tiles(n)}
        for index in sorted({*steps_on_tiles, *steps_after_tiles}):
            if index in steps_after_tiles:
                yield from self._wrong_reads(number, index, {})
            step = self.steps[index]
            computed = [n for n in (*step.writes, *step.numbers_written) if not self._in_tiles(n)]
            self.untiled |= dict.fromkeys(computed, index)
        for name in scheduled_pass.stores:
            versions = tile if self._in_tiles(name) else self.untiled
            if name not in versions:
                yield f"{self.strategy}, pass {number}: stores {name}, which it does not compute"
            self.memory[name] = versions.get(name, -1)

    def _wrong_reads(self, number: int, index: int, tile: Mapping[str, int]) -> Iterator[str]:
        step = self.steps[index]
        for name in (*step.reads, *step.numbers_read):
            if self._in_tiles(name):
                version = tile.get(name, self.memory.get(name))
            else:
                version = self.untiled.get(name)
            expected = self._expected_version(index, name)
            if version != expected:
                where = f"{self.strategy}, pass {number}, step {step.name}"
                yield f"{where}: reads version {version} of {name}, not {expected}"

    def _expected_version(self, index: int, name: str) -> int:
        """Return the version that a step reads if the steps run in their order, without passes."""
        before = enumerate(self.steps[:index])
        return max((i for i, s in before if name in (*s.writes, *s.numbers_written)), default=-1)

    def wrong_stores(self) -> Iterator[str]:
        """Yield a message for each stream whose last version is not stored at the end."""
        for name, version in self.memory.items():
            expected = self._expected_version(len(self.steps), name)
            if version != expected:
                yield f"{self.strategy}: version {version} of {name} is stored, not {expected}"

    def _in_tiles(self, name: str) -> bool:
        return name in self.axes and self.axes[name] in TILED_AXES[self.strategy]
