"""Which steps of a rule are run together, and which values are stored then.

A large matrix is swept as the plan says. Of small ones a thread has whole matrices at hand, so that
only a sum over all of them must be waited for: their rows and columns are known as soon as their
elements are, and are computed anew in every pass, as the elements are. But a state of rows that is
stored as it was computed can be read back. Of a long thin matrix it has whole rows, or whole
columns: what belongs to these goes along with the elements, and the few numbers across them are
waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from optgen.ir.value_kinds import Axes
from optgen.lowerings.fused_cpu.steps import Step

WHOLE_MATRICES = (Axes.TENSOR, Axes.ROW, Axes.COLUMN, Axes.MATRIX)
WHOLE_ROWS, WHOLE_COLUMNS = (Axes.TENSOR, Axes.ROW), (Axes.TENSOR, Axes.COLUMN)


@dataclass(frozen=True)
class Pass:
    """Steps that are run on every part of a tensor, steps that follow when all parts are done."""

    steps: tuple[Step, ...]
    finish: tuple[Step, ...]
    stores: tuple[str, ...]


def shared_passes(steps: Sequence[Step], streams: Iterable[str]) -> list[Pass]:
    """The passes over a large matrix: the sweeps of the plan, and what it finishes after each."""
    streams = tuple(streams)
    found = []
    for sweep in dict.fromkeys(step.sweep for step in steps):
        inside = [step for step in steps if step.sweep == sweep]
        swept = tuple(step for step in inside if step.swept)
        finish = tuple(step for step in inside if not step.swept)
        written = {n for step in inside for n in step.writes}
        found.append(Pass(swept, finish, tuple(n for n in streams if n in written)))
    return found


def ways(
    steps: Sequence[Step], streams: Mapping[str, Axes], has_axes: bool
) -> dict[str, list[Pass]]:
    """The passes of each way through a tensor, as jobs.h names and orders them."""
    local = Parts(steps, streams, WHOLE_MATRICES)
    if not has_axes:
        return {"LOCAL": local.passes()}
    tall, flat = Parts(steps, streams, WHOLE_ROWS), Parts(steps, streams, WHOLE_COLUMNS)
    return {
        "LOCAL": local.passes(),
        "TALL": tall.passes(),
        "FLAT": flat.passes(),
        "EXACT": local.exact_passes() or local.passes(),
        "EXACT_TALL": tall.exact_passes() or tall.passes(),
        "EXACT_FLAT": flat.exact_passes() or flat.passes(),
        "SHARED": shared_passes(steps, streams),
    }


@dataclass(frozen=True)
class Parts:
    """The steps of a rule where parts of a tensor have all that belongs to values of some axes."""

    steps: Sequence[Step]
    streams: Mapping[str, Axes]
    axes: Collection[Axes]

    def passes(self) -> list[Pass]:
        """The passes, in which values of these axes are computed anew; none if that cannot be."""
        return self._passes({n for n, axes in self.streams.items() if axes not in self.axes})

    def exact_passes(self) -> list[Pass]:
        """The same where states of rows and columns are of the type computed in; none if no better.

        They are stored by the first pass that knows them, and later ones read them.
        """
        kept = {name for name, axes in self.streams.items() if axes is not Axes.TENSOR}
        found = self._passes(kept)
        return found if kept and len(found) > 1 else []

    def _passes(self, kept: Collection[str]) -> list[Pass]:
        """The passes that compute states anew, but those that are `kept` since an earlier one."""
        steps, levels = self.steps, self._levels()
        passes = range(1 + max(levels))
        runs = [self._needed(levels, at, kept, self._own(levels, at)) for at in passes]
        for name in kept:
            writers = [i for i, step in enumerate(steps) if name in step.writes]
            first = min((levels[i] for i in writers), default=0)
            # What ran again would take the new value for the old one.
            again = {i for at, run in enumerate(runs) if at > first for i in run}
            before = range(max(writers, default=-1) + 1)
            if any(i in again and name in (*steps[i].reads, *steps[i].writes) for i in before):
                return []
        self._defer(levels, runs, kept)
        return self._laid_out(levels, runs)

    def _defer(
        self, levels: Sequence[int], runs: Sequence[set[int]], kept: Collection[str]
    ) -> None:
        """Add to each pass that reads what a stream was the steps that give it its new value.

        A value is stored by the last pass that computes it, and no pass before may have.
        """
        for name in (n for n in self.streams if n not in kept):
            writers = {i for i, step in enumerate(self.steps) if name in step.writes}
            if not writers or not all(self._is_swept(self.steps[i]) for i in writers):
                continue
            for at, run in enumerate(runs):
                old = any(i < min(writers) and name in self.steps[i].reads for i in run)
                if old and at >= max(levels[i] for i in writers):
                    run |= self._needed(levels, at, kept, writers)

    def _is_swept(self, step: Step) -> bool:
        """Whether it runs on every part: a loop over what these have, or a reduction of it."""
        if not step.word:
            return step.axes in self.axes
        makers = (s.axes for s in self.steps if step.reads[0] in s.writes)
        return next(makers, self.streams.get(step.reads[0])) in self.axes

    def _levels(self) -> list[int]:
        """In which pass a step runs: parts know what needs them all from the next one on."""
        known: dict[str, tuple[int, int]] = {}  # to what follows a pass, and to what is swept
        levels = []
        for step in self.steps:
            swept = self._is_swept(step)
            read = (known.get(n, (0, 0)) for n in (*step.reads, *step.takes))
            level = max((when[swept] for when in read), default=0)
            levels.append(level)
            for name in (*step.writes, *step.gives):
                after, later = known.get(name, (0, 0))
                known[name] = max(after, level), max(later, level + (step.axes not in self.axes))
        return levels

    def _own(self, levels: Sequence[int], at: int) -> set[int]:
        """The swept steps that a pass is the first to run."""
        swept = (i for i, step in enumerate(self.steps) if self._is_swept(step))
        return {i for i in swept if levels[i] == at}

    def _needed(
        self, levels: Sequence[int], at: int, kept: Collection[str], wanted: Collection[int]
    ) -> set[int]:
        """The swept steps that a pass runs for these: those too that make what they read anew."""
        steps = self.steps
        needed: set[int] = set()
        waiting = list(wanted)
        while waiting:
            index = waiting.pop()
            if index in needed:
                continue
            needed.add(index)
            for name in steps[index].reads:
                makers = [i for i in range(index) if name in steps[i].writes][-1:]
                waiting += [
                    i
                    for i in makers
                    if steps[i].axes in self.axes and (name not in kept or levels[i] == at)
                ]
        return needed

    def _laid_out(self, levels: Sequence[int], runs: Sequence[set[int]]) -> list[Pass]:
        """The passes that run these steps; a value is stored by the last one that computes it."""
        steps = self.steps
        finishes = [
            {i for i, step in enumerate(steps) if levels[i] == at and not self._is_swept(step)}
            for at in range(len(runs))
        ]
        last = {
            name: max(at for at, run in enumerate(runs) if index in run | finishes[at])
            for index, step in enumerate(steps)
            for name in step.writes
        }
        return [
            Pass(
                tuple(steps[index] for index in sorted(run)),
                tuple(steps[index] for index in sorted(finish)),
                tuple(name for name in self.streams if last.get(name) == at),
            )
            for at, (run, finish) in enumerate(zip(runs, finishes, strict=True))
        ]
