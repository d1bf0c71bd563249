"""Step all parameters together if their rule has numbers of several of them.

Each update is a generator. It stops where it asks for a reduction over several parameters, and all
updates of the step go on from there with the result.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.context import Stepping
from optgen.runtime.batch.grad_scaler import is_skipped, unscale
from optgen.runtime.eager import sharded_step
from optgen.runtime.eager.buckets import buckets
from optgen.runtime.eager.call import Call
from optgen.runtime.eager.common_dtype import in_one_dtype
from optgen.runtime.eager.working_copies import equal_lists
from optgen.runtime.protocols import Optimized
from optgen.runtime.sharded.consensus import Consensus
from optgen.runtime.sharded.driver import Update, run

Columns = Sequence[list[Any]]


def prepare(
    optimizer: Stepping, by_lowering: Mapping[str, Sequence[Batch]], consensus: Consensus | None
) -> Callable[[], None]:
    """Check the batches of a step, by their lowerings; return a function that updates them."""
    pairs = [(batch, lowering) for lowering in by_lowering for batch in by_lowering[lowering]]
    updates: list[Update] = []
    groups: list[int] = []
    for batch, lowering in pairs:
        _check(optimizer, batch)
        of_batch = list(_updates(optimizer, batch, lowering, consensus))
        updates += of_batch
        groups += [batch.group_id] * len(of_batch)

    def update() -> None:
        if is_skipped(optimizer):
            return
        for batch, _ in pairs:
            unscale(optimizer, batch)
        run(updates, groups)

    return update


def _check(optimizer: Optimized, batch: Batch) -> None:
    if batch.dispatch_key.occurrence:
        raise RuntimeError(
            f"{type(optimizer).__name__} reduces over parameters, and one is listed twice: list it "
            "once"
        )


def _updates(
    optimizer: Optimized, batch: Batch, lowering: str, consensus: Consensus | None
) -> Iterator[Update]:
    """Yield the updates of a batch.

    The for-loop and the functional form take one parameter in each update. foreach takes a bucket,
    in the form for shards, which takes whole parameters too. If the rule is not cut into sweeps,
    foreach takes lists whose matrices make one batch.
    """
    rule, group = optimizer.rule, batch.group
    functional = bool(group.get("differentiable") or group.get("capturable"))
    whole = rule.uncut or functional or lowering == "forloop"
    if batch.dispatch_key.sharding is not None or not whole:
        yield from sharded_step.updates(optimizer, batch, consensus)
        return
    call = Call.of(optimizer, batch, lowering)
    in_lists = lowering == "foreach" and not functional
    for columns, fresh, _ in buckets(rule, batch, equal_scalars=not functional):
        for part in equal_lists(*columns) if in_lists else _singles(columns):
            lists = in_one_dtype(rule, list(part))
            yield sharded_step.update_bucket(call.function, lists, {**call.hypers, **fresh})


def _singles(columns: Columns) -> Iterable[list[list[Any]]]:
    """Yield the lists of each parameter of a bucket; an absent state has an empty list."""
    for index in range(len(columns[0])):
        yield [column[index : index + 1] for column in columns]
