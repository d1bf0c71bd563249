"""The backends: what takes batches through a lowering, one line for each.

A backend is a class in a folder of its own. `dispatch` and `choice` know backends by this table and
by the protocol only.
"""

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeAlias

from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.context import CachedStep, Stepping
from optgen.runtime.protocols import Lowered
from optgen.runtime.sharded.consensus import Consensus

Update: TypeAlias = Callable[[], CachedStep | None]
"""Updates batches; returns the cached step that can be run the next time, if there can be one."""


class Entry(NamedTuple):
    """A row of the table of backends."""

    title: str  # as messages name it
    module: str
    device: str | None = None  # the type of device whose tensors a fused backend takes by default


BACKENDS = {
    "forloop": Entry("for-loop", "optgen.runtime.eager.backend"),
    "foreach": Entry("foreach", "optgen.runtime.eager.backend"),
    "fused_cpu": Entry("fused C++", "optgen.runtime.fused_cpu.backend", "cpu"),
    "fused_triton": Entry("fused Triton", "optgen.runtime.fused_triton.backend", "cuda"),
}
"""The backends by the names of their lowerings. In a step the last ones update first.

The C++ kernel must come before the eager ones: it finds that a sparse gradient names no row of its
parameter only when it runs.
"""

FUSED = {entry.device: name for name, entry in BACKENDS.items() if entry.device}
"""The fused lowering for each type of device."""


class CachedCall(Protocol):
    """A call of an elementwise function that a backend can take again with other lists."""

    def run(self, lists: Sequence[list[Tensor]], hypers: dict[str, Any]) -> bool:
        """Update the lists, or change nothing and return False."""


class Backend(Protocol):
    """What takes batches through one lowering."""

    def obstacle(self, owner: Lowered, batch: Batch) -> str:
        """Say in a few words why this backend cannot take a batch; "" if it can."""

    def prepare(
        self, optimizer: Stepping, batches: Sequence[Batch], consensus: Consensus | None
    ) -> Update:
        """Check batches, and raise before anything is written; return what updates them.

        Collectives of the update are noted in `consensus`, which exists if the step can have any.
        """

    def begin(self, optimizer: Stepping, takes: Callable[[Batch], bool]) -> CachedStep | None:
        """Take a first step without gathering batches, if that is possible.

        Args:
            optimizer: It has no batches yet.
            takes: Tells whether a batch would be dispatched to this backend.

        Returns:
            What repeats the step; None if no step was taken.
        """

    def call(self, function: Lowered, batch: Batch) -> CachedCall | None:
        """Update the lists of an elementwise function; return what can do so again, if anything."""


@cache
def backend(lowering: str) -> Backend:
    """Return the backend of a lowering; import it on first use."""
    made: Backend = importlib.import_module(BACKENDS[lowering].module).backend(lowering)
    return made
