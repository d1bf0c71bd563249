"""Update shards: launch the kernels of a step, and stop where ranks complete sums together.

Kernels know the sums of this rank's shards only. A fold leaves one sum of each result and tensor.
The ranks add them up on their devices, and the next finish reads them as it reads folded sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from optgen.runtime.fused_triton.bucket import Bucket
from optgen.runtime.fused_triton.workspace import WorkspaceSpec
from optgen.runtime.sharded.driver import Update
from optgen.runtime.sharded.reductions import PartialReduction

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def why_not_shards(spec: WorkspaceSpec) -> str:
    """Return a short reason why no kernel updates shards with this workspace; "" if kernels do."""
    if spec.by_matrix:
        return "kernels that reduce rows or columns need whole parameters"
    if spec.locals:
        return "matrix ops between kernels need whole parameters"
    return "kernels that draw random numbers need whole parameters" if spec.draws else ""


def update_of_shards(
    update: Callable[[Any], Any], bucket: Bucket, process_groups: tuple[ProcessGroup, ...]
) -> Update:
    """Launch the kernels of an update; after each fold, yield what the ranks must complete."""
    launches = _Launches(bucket)
    update(launches)
    for launch, sums, maxima in launches.steps:
        launch()
        requests = [
            PartialReduction(tensor, process_groups, is_maximum)
            for tensor, is_maximum in ((sums, False), (maxima, True))
            if tensor is not None and tensor.numel()
        ]
        if requests:
            yield requests


class _Launches:
    """A bucket whose update lists its launches instead of making them.

    Each comes with the sums and the maxima that it leaves on this rank.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.steps: list[tuple[Callable[[], None], Tensor | None, Tensor | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bucket, name)

    def launch(self, kernel: Any, programs: int, *args: Any, **options: Any) -> None:
        launch = partial(self._bucket.launch, kernel, programs, *args, **options)
        self.steps.append((launch, None, None))

    def fold(self, kernel: Any, results: int, maxima: int = 0, of_groups: bool = False) -> None:
        work, sums = self._bucket.workspace, results - maxima
        launch = partial(self._bucket.fold, kernel, results, maxima, of_groups)
        of_shards = work.sums_of_shards(0, sums), work.sums_of_shards(sums, maxima)
        self.steps.append((launch, *of_shards))
