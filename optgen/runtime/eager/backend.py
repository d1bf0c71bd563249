"""Update batches through the for-loop and foreach lowerings: by torch operations, per bucket."""

from collections.abc import Callable, Iterable, Sequence, Set

import torch

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.context import OptimizerWithContext
from optgen.runtime.batch.grad_scaler import is_skipped, unscale
from optgen.runtime.eager import sharded_step, wide_updates
from optgen.runtime.eager.buckets import buckets
from optgen.runtime.eager.call import Call
from optgen.runtime.eager.common_dtype import function_lists_in_one_dtype
from optgen.runtime.eager.generated_functions import load
from optgen.runtime.protocols import HasLowerings
from optgen.runtime.rule import number
from optgen.runtime.sharded.consensus import Consensus
from optgen.runtime.sharded.driver import Update


class EagerBackend:
    """Backend that calls generated functions over tensors or lists of tensors."""

    zeroes_gradients = False

    def __init__(self, lowering: str) -> None:
        self._lowering = lowering

    def obstacle(self, lowered: HasLowerings, batch: Batch) -> str:
        """Return "": torch's operations can take every batch."""
        return ""

    def function_obstacle(
        self, function: HasLowerings, device: torch.device, dtypes: Set[torch.dtype]
    ) -> str:
        """Return "": torch's operations can run every function."""
        return ""

    def prepare(
        self, optimizer: OptimizerWithContext, batches: Sequence[Batch], consensus: Consensus | None
    ) -> Callable[[], None]:
        """Check batches; return a function that updates them.

        The sharded batches are updated together, after all other batches.
        """
        unsharded = [batch for batch in batches if batch.dispatch_key.sharding is None]
        calls = [Call.of(optimizer, batch, self._lowering) for batch in unsharded]
        sharded = [batch for batch in batches if batch.dispatch_key.sharding is not None]
        update_sharded = sharded_step.prepare(optimizer, sharded, consensus) if consensus else None

        def update() -> None:
            if is_skipped(optimizer):
                return
            for call in calls:
                unscale(optimizer, call.batch)
                call.update(optimizer.rule)
            if update_sharded:
                update_sharded()

        return update

    def wide_updates(
        self, optimizer: OptimizerWithContext, batch: Batch, consensus: Consensus | None
    ) -> Iterable[Update]:
        """Return the updates of a batch of a rule that reduces over several parameters."""
        return wide_updates.updates(optimizer, batch, self._lowering, consensus)

    def begin(self, optimizer: OptimizerWithContext, can_take: Callable[[Batch], bool]) -> None:
        """Return None: this backend gathers batches in a first step as in any other."""

    def cached_step(self, optimizer: OptimizerWithContext, batches: Sequence[Batch]) -> None:
        """Return None: every step gathers its tensors."""

    def call(self, function: HasLowerings, batch: Batch) -> None:
        """Update the lists of an elementwise function."""
        rule = function.rule
        update = load(function.lowerings, self._lowering, "update")
        hypers = {key: number(batch.group[key]) for key in rule.hypers}
        for columns, _, _ in buckets(rule, batch, equal_scalars=True):
            lists = function_lists_in_one_dtype(rule, columns)
            update(*lists.columns, **hypers)
            lists.write_back()


def backend(lowering: str) -> EagerBackend:
    """Return the backend that runs a generated module, "forloop" or "foreach"."""
    return EagerBackend(lowering)
