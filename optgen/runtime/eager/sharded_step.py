"""Step sharded parameters through the foreach lowering if their rule needs whole parameters.

A rule with phases has a generated form for shards. A rule on whole matrices has none: its whole
parameters travel to the ranks that step them. A rule that reduces over several parameters uses the
form for shards even if no parameter is sharded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.grad_scaler import unscale
from optgen.runtime.eager.buckets import buckets
from optgen.runtime.eager.common_dtype import ListsInOneDtype, in_one_dtype
from optgen.runtime.eager.differentiable_capturable_checks import check_shards
from optgen.runtime.eager.generated_functions import Function, find, load, variant_name
from optgen.runtime.eager.hyper_arguments import hyper_arguments
from optgen.runtime.eager.owner_layouts import layouts_of_shards
from optgen.runtime.eager.owner_step import OwnerStep
from optgen.runtime.protocols import OptimizerLike
from optgen.runtime.sharded.collectives import Collectives
from optgen.runtime.sharded.consensus import Consensus
from optgen.runtime.sharded.driver import Update, run


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
    shard_form = find(optimizer.lowerings, "foreach", sharded_name)
    whole_name = variant_name("update", rule, batch)  # the form for whole parameters
    update = shard_form or load(optimizer.lowerings, "foreach", whole_name)
    if consensus and sharding:
        consensus.note(sharding, sharded_name, hypers, rule.rank(group))
    for columns, fresh, indices in buckets(rule, batch, equal_scalars=True):
        whole_param = batch.seen_params[indices[0]]
        step_count = columns[-1][0].item() if rule.step else None
        if consensus and sharding:
            consensus.note(
                sharding, tuple(whole_param.shape), whole_param.dtype, indices, fresh, step_count
            )
        collectives = {"collectives": Collectives(whole_param, sharded_axes)} if shard_form else {}
        keywords = {**hypers, **fresh, **collectives}
        if rule.why_uncut and sharding:
            layouts = layouts_of_shards(rule, group, whole_param, columns[0][0], sharding)
            if layouts[0].axes:  # else this rank has whole matrices
                yield from OwnerStep(rule, update, keywords, whole_param, layouts).updates(columns)
                continue
        yield update_bucket(update, in_one_dtype(rule, columns, whole_param), keywords)


def update_bucket(update: Function, lists: ListsInOneDtype, keywords: Mapping[str, Any]) -> Update:
    """Update a bucket, and yield the requests of its update; a rule without phases has none."""
    requests = update(*lists.columns, **keywords)
    if requests is not None:
        yield from requests
    lists.write_back()
