"""Step all parameters together, for a rule that reduces over several of them.

Each update is a generator. It stops at each reduction over several parameters. When all updates
have stopped at the same reduction, they go on with its result.
"""

from collections.abc import Mapping, Sequence

from optgen.runtime.backends import PreparedUpdate, backend
from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.context import CachedStep, OptimizerWithContext
from optgen.runtime.batch.grad_scaler import is_skipped, unscale
from optgen.runtime.protocols import OptimizerLike
from optgen.runtime.sharded.consensus import Consensus
from optgen.runtime.sharded.driver import Update, run


def prepare(
    optimizer: OptimizerWithContext,
    by_lowering: Mapping[str, Sequence[Batch]],
    consensus: Consensus | None,
) -> PreparedUpdate:
    """Check the batches of a step, by their lowerings; return a function that updates them."""
    batches_and_lowerings = [
        (batch, lowering) for lowering in by_lowering for batch in by_lowering[lowering]
    ]
    updates: list[Update] = []
    groups: list[int] = []
    for batch, lowering in batches_and_lowerings:
        _check_listed_once(optimizer, batch)
        batch_updates = list(backend(lowering).wide_updates(optimizer, batch, consensus))
        updates += batch_updates
        groups += [batch.group_id] * len(batch_updates)

    def update() -> CachedStep | None:
        if is_skipped(optimizer):
            return None
        for batch, _ in batches_and_lowerings:
            unscale(optimizer, batch)
        run(updates, groups)
        if len(by_lowering) != 1:
            return None
        ((lowering, batches),) = by_lowering.items()
        return backend(lowering).cached_step(optimizer, batches)

    return update


def _check_listed_once(optimizer: OptimizerLike, batch: Batch) -> None:
    """Raise an error for a parameter that is listed twice."""
    if batch.dispatch_key.occurrence:
        raise RuntimeError(
            f"{type(optimizer).__name__} reduces over parameters, and a parameter is listed twice: "
            "list it once"
        )
