"""The backends, which take batches through lowerings: their table and their protocol.

Each backend is a class in a folder of its own. A step knows backends only by the protocol.
"""

import importlib
from collections.abc import Callable, Iterable, Sequence, Set
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.step_context import CachedStep, OptimizerWithContext
from optgen.runtime.rule import HasLowerings, Rule
from optgen.runtime.sharded.consensus import Consensus
from optgen.runtime.sharded.driver import Update

PreparedUpdate: TypeAlias = Callable[[], CachedStep | None]
"""A function that updates batches; it returns a cached step for the next step, or None."""


class BackendEntry(NamedTuple):
    """A row of the table of backends."""

    title: str  # the lowering's name in messages
    module: str
    device: str | None = None  # the device type whose tensors a fused backend takes by default
    can_be_captured: bool = False  # whether a device's graph can capture a fused backend's steps


BACKENDS = {
    "forloop": BackendEntry("for-loop", "optgen.runtime.eager.backend"),
    "foreach": BackendEntry("foreach", "optgen.runtime.eager.backend"),
    "fused_cpu": BackendEntry("fused C++", "optgen.runtime.fused_cpu.backend", "cpu"),
    "fused_triton": BackendEntry(
        "fused Triton", "optgen.runtime.fused_triton.backend", "cuda", can_be_captured=True
    ),
}
"""The backends by the names of their lowerings. In a step, the last of them updates first.

The C++ kernel must update before the eager backends. If a sparse gradient names rows outside of
its parameter, the kernel raises an error, and nothing else must have been updated by then.
"""

FUSED = {entry.device: name for name, entry in BACKENDS.items() if entry.device}
"""The name of the fused lowering for each type of device."""


class CachedCall(Protocol):
    """A call of an elementwise function that a backend can repeat with other lists."""

    def run(self, lists: Sequence[list[Tensor]], hypers: dict[str, Any]) -> bool:
        """Update the lists, or change nothing and return False."""


class Backend(Protocol):
    """An object that takes batches through one lowering.

    * `zeroes_gradients`: whether its updates write zeros into dense gradients, for a rule with
      `zero_grad`. Otherwise the step writes the zeros after the updates.
    """

    zeroes_gradients: bool

    def build_or_reason(self, lowered: HasLowerings, batch: Batch) -> str:
        """Build what a batch needs; return a short reason why it cannot be taken, "" if it can.

        What has been built is kept, and so is the reason why a build has failed.
        """

    def build_function_or_reason(
        self, function: HasLowerings, device: torch.device, dtypes: Set[torch.dtype]
    ) -> str:
        """Build what a function over lists needs; return a reason, as `build_or_reason` does.

        Args:
            function: A generated function.
            device: The device of its tensors.
            dtypes: The dtypes of its tensors.
        """

    def prepare(
        self, optimizer: OptimizerWithContext, batches: Sequence[Batch], consensus: Consensus | None
    ) -> PreparedUpdate:
        """Check batches, and raise before anything is written; return their update.

        Record the collectives of the update in `consensus`; it is None if the step can have none.
        """

    def wide_updates(
        self, optimizer: OptimizerWithContext, batch: Batch, consensus: Consensus | None
    ) -> Iterable[Update]:
        """Check a batch of a rule that reduces over several parameters; return its updates.

        The caller unscales the gradients before it runs the first update.
        """

    def begin(
        self, optimizer: OptimizerWithContext, choose: Callable[[Batch], str]
    ) -> CachedStep | None:
        """Take a first step without gathering batches, if possible.

        Args:
            optimizer: An optimizer that has no batches yet.
            choose: Chooses the lowering of a batch, and builds its kernel.

        Returns:
            The cached step; None if no step was taken.
        """

    def cached_step(
        self, optimizer: OptimizerWithContext, batches: Sequence[Batch]
    ) -> CachedStep | None:
        """Return a cached step for the next step, after this backend has updated all batches.

        Return None if the next step must gather its tensors.
        """

    def call(self, function: HasLowerings, batch: Batch) -> CachedCall | None:
        """Run an elementwise function on a batch; return a cached call.

        Return None if the next call must gather its tensors.
        """


@cache
def backend(lowering: str) -> Backend:
    """Return the backend of a lowering; import it on first use."""
    instance: Backend = importlib.import_module(BACKENDS[lowering].module).backend(lowering)
    return instance


def backend_of(rule: Rule, lowering: str) -> Backend:
    """Return the backend that takes a rule through a lowering.

    A rule on whole matrices has no fused step. In a fused lowering, its step is eager code, which
    calls a compiled function for each elementwise part.
    """
    is_outlined = rule.why_uncut and BACKENDS[lowering].device
    return _outlined_step(lowering) if is_outlined else backend(lowering)


@cache
def _outlined_step(lowering: str) -> Backend:
    """Return the backend of rules on whole matrices, whose functions this lowering runs."""
    module = importlib.import_module("optgen.runtime.eager.backend")
    instance: Backend = module.OutlinedStep(backend(lowering).build_function_or_reason)
    return instance
