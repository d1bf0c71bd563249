"""Schedule the steps of a rule into passes over a tensor, and choose what each pass stores.

The schedule depends on the tiling strategy:

* A large matrix is shared by threads. Its passes are the sweeps of the plan.
* For small matrices, a thread has whole matrices in its tile. Row and column values are known as
  soon as the elements are, and every pass recomputes them with the elements. Only a reduction over
  all matrices ends a pass. A row or column state that is stored in the dtype in which it is
  computed ("exact") can be read back instead of recomputed.
* For a tall or flat matrix, a thread has whole rows or whole columns in its tile. The values of
  these rows or columns are treated like the elements. Reductions across them end a pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from optgen.ir.kinds import Axes
from optgen.lowerings.fused_cpu.step import Step

WHOLE_MATRICES = (Axes.TENSOR, Axes.ROW, Axes.COLUMN, Axes.MATRIX)
WHOLE_ROWS, WHOLE_COLUMNS = (Axes.TENSOR, Axes.ROW), (Axes.TENSOR, Axes.COLUMN)


@dataclass(frozen=True)
class Pass:
    """Pass over a tensor: `steps` run on every tile, `finish` after all tiles are done."""

    steps: tuple[Step, ...]
    finish: tuple[Step, ...]
    stores: tuple[str, ...]


def shared_passes(steps: Sequence[Step], streams: Iterable[str]) -> list[Pass]:
    """Return the passes over a large matrix: the plan's sweeps, each with its finish steps.

    Each pass draws the random numbers that it reads.
    """
    streams = tuple(streams)
    passes = []
    for sweep in dict.fromkeys(step.sweep for step in steps):
        sweep_steps = [step for step in steps if step.sweep == sweep and step.draws is None]
        read = {name for step in sweep_steps for name in step.reads}
        draws = (step for step in steps if step.draws and not read.isdisjoint(step.writes))
        on_tiles = (*draws, *(step for step in sweep_steps if step.over_elements))
        finish = tuple(step for step in sweep_steps if not step.over_elements)
        written = {n for step in sweep_steps for n in step.writes}
        passes.append(Pass(on_tiles, finish, tuple(n for n in streams if n in written)))
    return passes


def tiling_strategies(
    steps: Sequence[Step], streams: Mapping[str, Axes], has_axes: bool
) -> dict[str, list[Pass]]:
    """Return the passes of each tiling strategy, named and ordered as in tensor_plan.h."""
    whole = PassScheduler(steps, streams, WHOLE_MATRICES)
    if not has_axes:
        return {"WHOLE_MATRICES": whole.passes()}
    tall, flat = (
        PassScheduler(steps, streams, WHOLE_ROWS),
        PassScheduler(steps, streams, WHOLE_COLUMNS),
    )
    return {
        "WHOLE_MATRICES": whole.passes(),
        "WHOLE_ROWS": tall.passes(),
        "WHOLE_COLUMNS": flat.passes(),
        "EXACT_MATRICES": whole.exact_passes() or whole.passes(),
        "EXACT_ROWS": tall.exact_passes() or tall.passes(),
        "EXACT_COLUMNS": flat.exact_passes() or flat.passes(),
        "SPLIT": shared_passes(steps, streams),
    }


@dataclass(frozen=True)
class PassScheduler:
    """Scheduler of a rule's steps for one tiling strategy.

    `axes` are the axes of the values that a tile holds completely. For example, a tile of whole
    rows holds elements and row values.
    """

    steps: Sequence[Step]
    streams: Mapping[str, Axes]
    axes: Collection[Axes]

    def passes(self) -> list[Pass]:
        """Return passes that recompute every value whose axes are among the scheduler's `axes`.

        Return [] if such passes cannot be correct.
        """
        return self._passes({n for n, axes in self.streams.items() if axes not in self.axes})

    def exact_passes(self) -> list[Pass]:
        """Return the passes for row and column states that are stored in the compute dtype.

        The first pass that knows such a state stores it, and later passes read it back. Return []
        if no pass would read one back.
        """
        read_back = {name for name, axes in self.streams.items() if axes is not Axes.TENSOR}
        passes = self._passes(read_back)
        return passes if read_back and len(passes) > 1 else []

    def _passes(self, read_back: Collection[str]) -> list[Pass]:
        """Return passes that recompute states, except those in `read_back`.

        A *level* of a step is the index of the first pass that runs it. A *run* is the set of the
        steps that a pass runs on tiles, by index.
        """
        levels = self._levels()
        passes = range(1 + max(levels))
        runs = [
            self._needed_steps(
                levels, pass_index, read_back, self._new_steps_on_tiles(levels, pass_index)
            )
            for pass_index in passes
        ]
        self._defer_stores(levels, runs, read_back)
        if any(self._reruns_after_store(levels, runs, name) for name in read_back):
            return []
        if any(self._adds_again(levels, pass_index, run) for pass_index, run in enumerate(runs)):
            return []
        return self._passes_of(levels, runs)

    def _reruns_after_store(
        self, levels: Sequence[int], runs: Sequence[Collection[int]], name: str
    ) -> bool:
        """Tell whether a step that needs a name's old value runs again after the name is stored."""
        steps = self.steps
        writers = [i for i, step in enumerate(steps) if name in step.writes]
        storing_pass = min((levels[i] for i in writers), default=0)
        rerun = {i for pass_index, run in enumerate(runs) if pass_index > storing_pass for i in run}
        steps_to_last_writer = range(max(writers, default=-1) + 1)
        return any(
            i in rerun and name in (*steps[i].reads, *steps[i].writes) for i in steps_to_last_writer
        )

    def _adds_again(self, levels: Sequence[int], pass_index: int, run: Collection[int]) -> bool:
        """Tell whether a pass reads complete sums, and also runs the loop over their summands.

        That loop would add the summands to the complete sums again.
        """
        steps = self.steps
        read = {name for i in run for name in steps[i].reads}
        computed_elements = {
            n for i in run if steps[i].axes is Axes.TENSOR for n in steps[i].writes
        }
        complete_reductions = (
            step
            for step, level in zip(steps, levels, strict=True)
            if step.reduces_values and level < pass_index and step.axes not in self.axes
        )
        return any(
            s.reads[0] in computed_elements and not read.isdisjoint(s.writes)
            for s in complete_reductions
        )

    def _defer_stores(
        self, levels: Sequence[int], runs: Sequence[set[int]], read_back: Collection[str]
    ) -> None:
        """Make each pass that reads a stream's old value also compute its new one.

        The last pass that computes a value stores it. So no pass overwrites an old value that a
        later pass reads.
        """
        previous_runs: list[set[int]] = []
        while previous_runs != runs:  # a step added for one name may read the old value of another
            previous_runs = [set(run) for run in runs]
            for name in (n for n in self.streams if n not in read_back):
                self._defer_store(name, levels, runs, read_back)

    def _defer_store(
        self, name: str, levels: Sequence[int], runs: Sequence[set[int]], read_back: Collection[str]
    ) -> None:
        """Add the writers of a name to each pass that reads its old value and knows the new one."""
        writers = {i for i, step in enumerate(self.steps) if name in step.writes}
        if not writers or not all(self._runs_on_tiles(self.steps[i]) for i in writers):
            return
        for pass_index, run in enumerate(runs):
            reads_old = any(i < min(writers) and name in self.steps[i].reads for i in run)
            if reads_old and pass_index >= max(levels[i] for i in writers):
                run |= self._needed_steps(levels, pass_index, read_back, writers)

    def _runs_on_tiles(self, step: Step) -> bool:
        """Tell whether a step runs on every tile: a loop over the tile's values, or a reduction."""
        if not step.reduces_values:
            return step.axes in self.axes
        (operand, *_) = step.reads
        computed_axes = (other.axes for other in self.steps if operand in other.writes)
        operand_axes = next(computed_axes, self.streams.get(operand))
        return operand_axes in self.axes

    def _levels(self) -> list[int]:
        """Return, for each step, the index of the first pass that runs it.

        The result of a reduction over all tiles is known from the next pass on. Reductions over
        parameters keep their order, because all parameters must reach them in one order.
        """
        # For each name, the first pass that can read it on tiles, and the first in its finish.
        known_on_tiles: dict[str, int] = {}
        known_in_finish: dict[str, int] = {}
        levels = []
        last_wide = 0  # the pass of the last reduction over parameters
        for step in self.steps:
            known = known_on_tiles if self._runs_on_tiles(step) else known_in_finish
            level = max((known.get(n, 0) for n in (*step.reads, *step.numbers_read)), default=0)
            if step.is_wide:
                level = last_wide = max(level, last_wide)
            levels.append(level)
            level_on_tiles = level if step.axes in self.axes else level + 1
            for name in (*step.writes, *step.numbers_written):
                known_on_tiles[name] = max(known_on_tiles.get(name, 0), level_on_tiles)
                known_in_finish[name] = max(known_in_finish.get(name, 0), level)
        return levels

    def _new_steps_on_tiles(self, levels: Sequence[int], pass_index: int) -> set[int]:
        """Return the steps on tiles that a pass is the first to run.

        A draw is left out, because it runs in exactly the passes that read its numbers.
        """
        on_tiles = (i for i, step in enumerate(self.steps) if self._runs_on_tiles(step))
        return {i for i in on_tiles if levels[i] == pass_index and self.steps[i].draws is None}

    def _needed_steps(
        self,
        levels: Sequence[int],
        pass_index: int,
        read_back: Collection[str],
        wanted: Collection[int],
    ) -> set[int]:
        """Return the wanted steps, and the steps on tiles that recompute the values they read."""
        steps = self.steps
        needed: set[int] = set()
        worklist = list(wanted)
        while worklist:
            index = worklist.pop()
            if index in needed:
                continue
            needed.add(index)
            for name in steps[index].reads:
                last_writer = [i for i in range(index) if name in steps[i].writes][-1:]
                worklist += [
                    i
                    for i in last_writer
                    if steps[i].axes in self.axes
                    and (name not in read_back or levels[i] == pass_index)
                ]
        return needed

    def _passes_of(self, levels: Sequence[int], runs: Sequence[set[int]]) -> list[Pass]:
        """Return the passes of these runs. The last pass that computes a value stores it."""
        steps = self.steps
        finishes = [
            {
                i
                for i, step in enumerate(steps)
                if levels[i] == pass_index and not self._runs_on_tiles(step)
            }
            for pass_index in range(len(runs))
        ]
        last_pass = {
            name: max(
                pass_index
                for pass_index, run in enumerate(runs)
                if index in run | finishes[pass_index]
            )
            for index, step in enumerate(steps)
            for name in step.writes
        }
        return [
            Pass(
                tuple(steps[index] for index in sorted(run)),
                tuple(steps[index] for index in sorted(finish)),
                tuple(name for name in self.streams if last_pass.get(name) == pass_index),
            )
            for pass_index, (run, finish) in enumerate(zip(runs, finishes, strict=True))
        ]
