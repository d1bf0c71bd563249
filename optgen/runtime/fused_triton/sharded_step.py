"""Update shards: launch the kernels of a step, and stop where ranks complete sums together.

Sweeps see this rank's shards, and finishes see whole matrices. After a sweep, a fold leaves one sum
of each result and tensor, and one of each result and line. The ranks add them up on their devices.
So each rank finishes all lines of the matrices of which it has a piece; its sweeps read the values
of its own lines.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from optgen.runtime.fused_triton.bucket import Bucket
from optgen.runtime.fused_triton.workspace import (
    NO_LINE_SUMS,
    LineSums,
    Programs,
    WorkspaceSpec,
)
from optgen.runtime.sharded.driver import Update
from optgen.runtime.sharded.reductions import PartialReduction

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_Requests = Sequence[PartialReduction]


def why_not_shards(spec: WorkspaceSpec) -> str:
    """Return a short reason why no kernel updates shards with this workspace; "" if kernels do."""
    if spec.locals:
        return "matrix ops between kernels need whole parameters"
    return "kernels that draw random numbers need whole parameters" if spec.draws else ""


def update_of_shards(
    update: Callable[[Any], Any],
    bucket: Bucket,
    process_groups: tuple[ProcessGroup, ...] = (),
    parts: Sequence[Tensor] = (),
) -> Update:
    """Launch the kernels of an update; after each fold, yield what the ranks must complete.

    Args:
        update: the generated update.
        bucket: the bucket of the shards.
        process_groups: the groups of ranks that hold shards of the same parameters.
        parts: what `bucket.whole_states` has replaced.
    """
    launches = _Launches(bucket, process_groups, parts)
    update(launches)
    for step in launches.steps:
        requests = step()
        if requests:
            yield requests
    if launches.has_gathered_states:
        bucket.whole_states.store(parts)


class _Launches:
    """A bucket whose update lists its launches instead of making them.

    Each step launches, copies, or returns what the ranks must complete before the next step.
    """

    def __init__(
        self, bucket: Bucket, process_groups: tuple[ProcessGroup, ...], parts: Sequence[Tensor]
    ) -> None:
        self._bucket, self._groups, self._parts = bucket, process_groups, parts
        self._is_finish = self.has_gathered_states = False
        # Before the next launch: this rank's results, and where their totals are stored.
        self._open_requests: list[Callable[[], _Requests]] = []
        self._answers: list[Callable[[], None]] = []
        self.steps: list[Callable[[], _Requests | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bucket, name)

    def launch(self, kernel: Any, programs: int, *args: Any, **options: Any) -> None:
        states = self._bucket.whole_states
        if self._is_finish and not self.has_gathered_states:
            self.has_gathered_states = True
            self._open_requests.append(partial(states.request, self._parts))
            self._answers.append(states.finish)
        if self._open_requests:
            self.steps += [partial(_all_requests, self._open_requests), *self._answers]
            self._open_requests, self._answers = [], []
        self.steps.append(partial(self._bucket.launch, kernel, programs, *args, **options))
        if self._is_finish:
            self._is_finish = False
            self.steps.append(self._bucket.completion.store_values)

    def fold(
        self,
        kernel: Any,
        results: int,
        maxima: int = 0,
        of_groups: bool = False,
        first: int = 0,
    ) -> None:
        self.steps.append(partial(self._bucket.fold, kernel, results, maxima, of_groups))
        completion, sums = self._bucket.completion, results - maxima
        self._open_requests.append(
            partial(completion.group_sums, first, sums, maxima)
            if of_groups
            else partial(completion.block_sums, sums, maxima, self._groups)
        )

    def finish_programs(self, lines: LineSums = NO_LINE_SUMS) -> Programs:
        self._is_finish = True
        if lines != NO_LINE_SUMS:
            exchange, parts = self._bucket.completion.line_sums(lines)
            self.steps.append(partial(_fold_lines, self._bucket, lines))
            self._open_requests.append(partial(exchange.request, parts))
            self._answers.append(exchange.finish)
        return self._bucket.whole_workspace.programs(lines.rows, lines.columns)


def _all_requests(open_requests: Sequence[Callable[[], _Requests]]) -> _Requests:
    return [request for requests in open_requests for request in requests()]


def _fold_lines(bucket: Bucket, lines: LineSums) -> None:
    """Add up the partial sums that the tiles of this rank's shards have of each row and column."""
    module = importlib.import_module("optgen.runtime.fused_triton.device_reductions")
    work = bucket.workspace
    programs = work.programs(lines.rows, lines.columns)
    bucket.launch(
        module.fold_lines,
        programs.total,
        programs.first_programs,
        programs.tensor_indices,
        work.shapes,
        work.values,
        work.partials,
        bucket.num_tensors,
        TILES=work.line_options["TILES"],
        SUMS=lines.sums,
        ROW_SUMS=lines.rows,
        COLUMN_SUMS=lines.columns,
        ROW_VALUES=lines.row_values,
        FIRST_ROW=lines.first_row,
        FIRST_COLUMN=lines.first_column,
        ROW_MAXIMA=lines.row_maxima,
        COLUMN_MAXIMA=lines.column_maxima,
        **work.number_options,
    )
