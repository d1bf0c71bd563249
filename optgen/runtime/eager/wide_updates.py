"""Update batches of a rule that reduces over several parameters; updates wait for one another."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from optgen.runtime.batch.batch import Batch
from optgen.runtime.eager import sharded_step
from optgen.runtime.eager.buckets import buckets
from optgen.runtime.eager.call import Call
from optgen.runtime.eager.common_dtype import in_one_dtype
from optgen.runtime.eager.working_copies import same_shape_sublists
from optgen.runtime.protocols import OptimizerLike
from optgen.runtime.sharded.consensus import Consensus
from optgen.runtime.sharded.driver import Update

Columns = Sequence[list[Any]]


def updates(
    optimizer: OptimizerLike, batch: Batch, lowering: str, consensus: Consensus | None
) -> Iterator[Update]:
    """Yield the updates of a batch.

    The for-loop and the functional form take one parameter in each update. foreach takes a
    bucket, and runs `update_sharded` even if no parameter is sharded. If the rule is not cut into
    sweeps, foreach takes lists of matrices of one shape.
    """
    rule, group = optimizer.rule, batch.group
    functional = bool(group.get("differentiable") or group.get("capturable"))
    has_update_sharded = lowering == "foreach" and not functional and not rule.why_uncut
    if batch.dispatch_key.sharding is not None or has_update_sharded:
        yield from sharded_step.updates(optimizer, batch, consensus)
        return
    call = Call.of(optimizer, batch, lowering)
    in_lists = lowering == "foreach" and not functional
    for columns, fresh, _ in buckets(rule, batch, equal_scalars=not functional):
        for part in same_shape_sublists(*columns) if in_lists else _one_by_one(columns):
            lists = in_one_dtype(rule, list(part))
            yield sharded_step.update_bucket(call.function, lists, {**call.hypers, **fresh})


def _one_by_one(columns: Columns) -> Iterable[list[list[Any]]]:
    """Yield the lists of each parameter of a bucket; an absent state has an empty list."""
    for index in range(len(columns[0])):
        yield [column[index : index + 1] for column in columns]
