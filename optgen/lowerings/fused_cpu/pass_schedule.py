"""Schedule the steps of a rule as passes over a tensor.

A pass goes over the tensor once, tile by tile. It runs some steps on every tile, and others when
all tiles are done. A tile holds all values of some axes: elements, and with the tiles of small
matrices also their row and column values. A step on such values runs on tiles, and each later pass
that needs its result computes it again. A reduction over all tiles has its result after the pass.

* A large matrix is shared by threads. Its passes are the sweeps of the plan.
* For small matrices, a tile has whole matrices. Only a reduction over all matrices ends a pass.
* For a tall or flat matrix, a tile has whole rows or whole columns. Reductions across them end a
  pass.
* A row or column state that is stored in the dtype in which it is computed ("exact") can be read
  back from memory instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from optgen.ir.kinds import Axes
from optgen.lowerings.fused_cpu.kernel_steps import Step

TILE_AXES: Mapping[str, Collection[Axes]] = {
    "MATRICES": (Axes.TENSOR, Axes.ROW, Axes.COLUMN, Axes.MATRIX),
    "ROWS": (Axes.TENSOR, Axes.ROW),
    "COLUMNS": (Axes.TENSOR, Axes.COLUMN),
}
"""Axes of the values that a tile of whole matrices, rows or columns holds completely."""


@dataclass(frozen=True)
class Pass:
    """Pass over a tensor: its steps on every tile and after all tiles, and the streams it stores.

    A stream is stored from the tiles if these hold its values, else after all tiles.
    """

    on_tiles: tuple[Step, ...]
    after_tiles: tuple[Step, ...]
    stores: tuple[str, ...]


def tiling_strategies(
    steps: Sequence[Step], streams: Mapping[str, Axes], has_axes: bool
) -> dict[str, list[Pass]]:
    """Return the passes of each tiling strategy, named and ordered as in tensor_plan.h.

    A strategy that cannot compute the rule has no passes.
    """
    tiles = TILE_AXES if has_axes else {"MATRICES": TILE_AXES["MATRICES"]}
    whole = {
        tile: _passes(steps, streams, axes, {n for n, a in streams.items() if a not in axes})
        for tile, axes in tiles.items()
    }
    strategies = {f"WHOLE_{tile}": passes for tile, passes in whole.items()}
    if not has_axes:
        return strategies
    row_and_column_states = {name for name, axes in streams.items() if axes is not Axes.TENSOR}
    for tile, axes in tiles.items():
        exact = _passes(steps, streams, axes, row_and_column_states)
        # With one pass, nothing is read back.
        strategies[f"EXACT_{tile}"] = exact if len(exact) > 1 else whole[tile]
    return {**strategies, "SPLIT": _passes_of_sweeps(steps, streams)}


def _passes_of_sweeps(steps: Sequence[Step], streams: Iterable[str]) -> list[Pass]:
    """Return the passes over a large matrix: a pass for each sweep of the plan.

    Each pass draws the random numbers that it reads.
    """
    passes = []
    for sweep in dict.fromkeys(step.sweep for step in steps):
        own_steps = [step for step in steps if step.sweep == sweep and step.draws is None]
        read = {name for step in own_steps for name in step.reads}
        draws = (step for step in steps if step.draws and not read.isdisjoint(step.writes))
        written = {name for step in own_steps for name in step.writes}
        passes.append(
            Pass(
                (*draws, *(step for step in own_steps if step.over_elements)),
                tuple(step for step in own_steps if not step.over_elements),
                tuple(name for name in streams if name in written),
            )
        )
    return passes


def _passes(
    steps: Sequence[Step],
    streams: Mapping[str, Axes],
    tile_axes: Collection[Axes],
    read_back: Collection[str],
) -> list[Pass]:
    """Return the passes for tiles that hold all values of `tile_axes`; [] if none are correct.

    A pass that computes a stream of `read_back` stores it, and later passes read it from memory.
    They compute all other streams again, from old values. So their last pass stores them.
    """
    schedule = TileSchedule(steps, streams, tile_axes, read_back)
    schedule.compute_beside_old_values()
    return [] if schedule.stores_too_early() or schedule.adds_again() else schedule.passes()


class TileSchedule:
    """The steps that run on the tiles of each pass. Steps are known by their indices."""

    def __init__(
        self,
        steps: Sequence[Step],
        streams: Mapping[str, Axes],
        tile_axes: Collection[Axes],
        read_back: Collection[str],
    ) -> None:
        self.steps, self.streams = steps, streams
        self.tile_axes, self.read_back = tile_axes, read_back
        self.writers: dict[str, list[int]] = {}
        for index, step in enumerate(steps):
            for name in step.writes:
                self.writers.setdefault(name, []).append(index)
        self.tiled = {index for index, step in enumerate(steps) if self._is_on_tiles(step)}
        self.first_passes = self._first_passes()
        self.on_tiles: list[set[int]] = []  # for each pass
        for number in range(1 + max(self.first_passes)):
            # A draw runs in exactly the passes that read its numbers.
            new = [i for i in self.tiled if self.first_passes[i] == number and not steps[i].draws]
            self.on_tiles.append(self._with_operands(new, number))

    def _is_on_tiles(self, step: Step) -> bool:
        """Tell whether a step runs on every tile: a loop over the tile's values, or a reduction."""
        if not step.reduces_values:
            return step.axes in self.tile_axes
        operand = step.reads[0]
        computed_axes = (self.steps[writer].axes for writer in self.writers.get(operand, ()))
        return next(computed_axes, self.streams.get(operand)) in self.tile_axes

    def _first_passes(self) -> list[int]:
        """Return, for each step, the number of the first pass that runs it.

        The result of a reduction over all tiles is known on tiles from the next pass on. Reductions
        over parameters keep their order, because all parameters must reach them in one order.
        """
        # For each name, the first pass that can read it on tiles, and after all tiles.
        on_tiles: dict[str, int] = {}
        after_tiles: dict[str, int] = {}
        first_passes = []
        last_wide = 0  # the pass of the last reduction over parameters
        for index, step in enumerate(self.steps):
            known = on_tiles if index in self.tiled else after_tiles
            number = max((known.get(n, 0) for n in (*step.reads, *step.numbers_read)), default=0)
            if step.is_wide:
                number = last_wide = max(number, last_wide)
            first_passes.append(number)
            number_on_tiles = number if step.axes in self.tile_axes else number + 1
            for name in (*step.writes, *step.numbers_written):
                on_tiles[name] = max(on_tiles.get(name, 0), number_on_tiles)
                after_tiles[name] = max(after_tiles.get(name, 0), number)
        return first_passes

    def _with_operands(self, wanted: Iterable[int], number: int) -> set[int]:
        """Return the wanted steps, and the steps on tiles that compute what they read in a pass."""
        needed: set[int] = set()
        worklist = list(wanted)
        while worklist:
            index = worklist.pop()
            if index in needed:
                continue
            needed.add(index)
            for name in self.steps[index].reads:
                # The last step that wrote the name before; a stream may come from memory.
                for writer in [i for i in self.writers.get(name, ()) if i < index][-1:]:
                    is_in_memory = name in self.read_back and self.first_passes[writer] != number
                    if self.steps[writer].axes in self.tile_axes and not is_in_memory:
                        worklist.append(writer)
        return needed

    def compute_beside_old_values(self) -> None:
        """Make each pass that reads a stream's old value also compute its new one, if it can.

        The last pass that computes a stream stores it. So no pass overwrites an old value that a
        later pass reads.
        """
        names = [n for n in self.streams if n not in self.read_back and n in self.writers]
        names = [n for n in names if self.tiled.issuperset(self.writers[n])]
        before: list[set[int]] = []
        while before != self.on_tiles:  # a step added for one name may read another's old value
            before = [set(indices) for indices in self.on_tiles]
            for name in names:
                writers = self.writers[name]
                first = max(self.first_passes[i] for i in writers)
                for number, indices in enumerate(self.on_tiles):
                    reads_old = any(i < writers[0] and name in self.steps[i].reads for i in indices)
                    if reads_old and number >= first:
                        indices |= self._with_operands(writers, number)

    def stores_too_early(self) -> bool:
        """Tell whether a step needs the old value of a stream after a pass has stored the new one.

        Only a stream that is read back is stored before the last pass that computes it.
        """
        for name in self.read_back:
            writers = self.writers.get(name, [])
            storing_pass = min((self.first_passes[i] for i in writers), default=0)
            if any(
                index <= max(writers, default=-1)
                and name in (*self.steps[index].reads, *self.steps[index].writes)
                for indices in self.on_tiles[storing_pass + 1 :]
                for index in indices
            ):
                return True
        return False

    def adds_again(self) -> bool:
        """Tell whether a pass reads complete sums, and also runs the loop over their summands.

        That loop would add the summands to the complete sums again.
        """
        for number, indices in enumerate(self.on_tiles):
            ran = [self.steps[index] for index in indices]
            read = {name for step in ran for name in step.reads}
            elements = {n for step in ran if step.axes is Axes.TENSOR for n in step.writes}
            if any(
                step.reduces_values
                and first_pass < number
                and step.axes not in self.tile_axes
                and step.reads[0] in elements
                and not read.isdisjoint(step.writes)
                for step, first_pass in zip(self.steps, self.first_passes, strict=True)
            ):
                return True
        return False

    def passes(self) -> list[Pass]:
        """Return the passes. The last pass that computes a stream stores it."""
        after_tiles: list[set[int]] = [set() for _ in self.on_tiles]
        for index, number in enumerate(self.first_passes):
            if index not in self.tiled:
                after_tiles[number].add(index)
        ran = list(map(set.union, self.on_tiles, after_tiles))
        storing_pass = {
            name: max(number for number, indices in enumerate(ran) if writers[-1] in indices)
            for name, writers in self.writers.items()
        }
        return [
            Pass(
                tuple(self.steps[index] for index in sorted(on)),
                tuple(self.steps[index] for index in sorted(after)),
                tuple(name for name in self.streams if storing_pass.get(name) == number),
            )
            for number, (on, after) in enumerate(zip(self.on_tiles, after_tiles, strict=True))
        ]
