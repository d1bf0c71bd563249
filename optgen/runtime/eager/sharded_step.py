"""The foreach steps of sharded parameters whose rule needs whole parameters."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.grad_scaler import unscale
from optgen.runtime.eager.buckets import buckets
from optgen.runtime.eager.common_dtype import OneDtype, in_one_dtype
from optgen.runtime.eager.functions import Function, find, hypers, load, named
from optgen.runtime.protocols import Optimized
from optgen.runtime.sharded.collectives import Collectives
from optgen.runtime.sharded.consensus import Consensus
from optgen.runtime.sharded.driver import Update, run


def prepare(
    optimizer: Optimized, batches: Sequence[Batch], consensus: Consensus
) -> Callable[[], None]:
    """Make the updates of these batches, and note them; return what runs them together.

    The buckets follow from the shapes of whole parameters, so that all ranks have the same.
    """
    rounds: dict[int, list[Update]] = {}  # a parameter that comes twice is stepped twice
    for batch in batches:
        rounds.setdefault(batch.dispatch_key.occurrence, []).extend(
            _updates(optimizer, batch, consensus)
        )

    def take() -> None:
        for batch in batches:
            unscale(optimizer, batch)
        for updates in rounds.values():
            run(updates)

    return take


def _updates(optimizer: Optimized, batch: Batch, consensus: Consensus) -> Iterator[Update]:
    rule, group, sharding = optimizer.rule, batch.group, batch.dispatch_key.sharding
    assert sharding is not None
    if group.get("differentiable") or group.get("capturable"):
        raise RuntimeError(
            f"{type(optimizer).__name__} looks at a parameter as a whole, and this process holds "
            f"a part ({sharding.placements}): neither differentiable=True nor capturable=True can "
            "step"
        )
    taken = hypers(rule, group, functional=False, lowering="foreach")
    name, sharded_axes = named("update_sharded", rule, batch), sharding.sharded_axes()
    sharded = find(optimizer.lowerings, "foreach", name)
    alone = named("update", rule, batch)  # where parts of such parameters go by themselves
    update = sharded or load(optimizer.lowerings, "foreach", alone)
    consensus.note(sharding, name, taken)
    for columns, fresh, places in buckets(rule, batch, by_value=True):
        whole = batch.members[places[0]]
        count = columns[-1][0].item() if rule.step else None
        consensus.note(sharding, tuple(whole.shape), whole.dtype, places, fresh, count)
        collectives = {"collectives": Collectives(whole, sharded_axes)} if sharded else {}
        yield _made(update, in_one_dtype(rule, columns), {**taken, **fresh, **collectives})


def _made(update: Function, taken: OneDtype, keywords: Mapping[str, Any]) -> Update:
    """An update of a bucket, as the driver takes it: one without phases asks for nothing."""
    asking = update(*taken.columns, **keywords)
    if asking is not None:
        yield from asking
    taken.put_back()
