"""Step sharded parameters through the foreach lowering if their rule needs whole parameters.

A rule with phases has a generated form for shards. A rule on whole matrices has none: its whole
parameters travel to the ranks that step them. A rule that reduces over several parameters uses the
form for shards even if no parameter is sharded.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.grad_scaler import unscale
from optgen.runtime.eager import sharded_step
from optgen.runtime.eager.call import (
    Call,
    Function,
    buckets,
    check_shards,
    find_function,
    hyper_arguments,
    load_function,
    variant_name,
)
from optgen.runtime.eager.owner_step import OwnerStep, layouts_of_shards
from optgen.runtime.eager.parts import same_shape_sublists
from optgen.runtime.eager.working_copies import ListsInOneDtype, in_one_dtype
from optgen.runtime.rule import OptimizerLike
from optgen.runtime.sharded.consensus import Consensus
from optgen.runtime.sharded.driver import Collectives, Update, run


def prepare(
    optimizer: OptimizerLike, batches: Sequence[Batch], consensus: Consensus
) -> Callable[[], None]:
    """Note these batches' updates in the consensus; return a function that runs the updates.

    The buckets follow from the shapes of whole parameters, so all ranks have the same buckets.
    """
    rounds: dict[int, list[Update]] = {}  # a parameter that is listed twice steps in two rounds
    for batch in batches:
        rounds.setdefault(batch.dispatch_key.occurrence, []).extend(
            updates(optimizer, batch, consensus)
        )

    def update() -> None:
        for batch in batches:
            unscale(optimizer, batch)
        for round_updates in rounds.values():
            run(round_updates)

    return update


def updates(
    optimizer: OptimizerLike, batch: Batch, consensus: Consensus | None = None
) -> Iterator[Update]:
    """Yield the updates of a batch; note them in the consensus that sharded parameters need."""
    rule, group, sharding = optimizer.rule, batch.group, batch.dispatch_key.sharding
    check_shards(optimizer, batch)
    hypers = hyper_arguments(rule, group, functional=False, lowering="foreach")
    sharded_name = variant_name("update_sharded", rule, batch)
    sharded_axes = sharding.sharded_axes() if sharding is not None else ()
    shard_form = find_function(optimizer.lowerings, "foreach", sharded_name)
    whole_name = variant_name("update", rule, batch)  # the form for whole parameters
    update = shard_form or load_function(optimizer.lowerings, "foreach", whole_name)
    if consensus and sharding:
        consensus.note(sharding, sharded_name, hypers, rule.rank(group))
    for columns, fresh, indices in buckets(rule, batch, equal_scalars=True):
        whole_param = batch.seen_params[indices[0]]
        step_count = columns[-1][0].item() if rule.step else None
        if consensus and sharding:
            consensus.note(
                sharding, tuple(whole_param.shape), whole_param.dtype, indices, fresh, step_count
            )
        keywords = {**hypers, **fresh}
        if rule.why_uncut and sharding:
            layouts = layouts_of_shards(rule, group, whole_param, columns[0][0], sharding)
            if layouts[0].axes:  # else this rank has whole matrices
                yield from OwnerStep(rule, update, keywords, whole_param, layouts).updates(columns)
                continue
        collectives = Collectives(whole_param, sharded_axes)
        # Matrices travel in rounds. Updates of a wide rule wait for one another.
        travels = shard_form and rule.matrix_calls and not rule.wide
        length = collectives.round_length(columns[0]) if travels else len(columns[0])
        for start in range(0, len(columns[0]), length):
            part = [column[start : start + length] for column in columns]
            if shard_form:
                keywords["collectives"] = Collectives(whole_param, sharded_axes)
            lists = in_one_dtype(rule, part, group, whole_param)
            yield update_bucket(update, lists, {**keywords})


def update_bucket(update: Function, lists: ListsInOneDtype, keywords: Mapping[str, Any]) -> Update:
    """Update a bucket, and yield the requests of its update; a rule without phases has none."""
    requests = update(*lists.columns, **keywords)
    if requests is not None:
        yield from requests
    lists.write_back()


Columns = Sequence[list[Any]]


def wide_updates(
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
            lists = in_one_dtype(rule, list(part), group)
            yield sharded_step.update_bucket(call.function, lists, {**call.hypers, **fresh})


def _one_by_one(columns: Columns) -> Iterable[list[list[Any]]]:
    """Yield the lists of each parameter of a bucket; an absent state has an empty list."""
    for index in range(len(columns[0])):
        yield [column[index : index + 1] for column in columns]
