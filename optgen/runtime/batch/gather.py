"""Gather the batches of a step: parameters with a gradient, gradients and states, group by group.

Anything may change between two steps: wrappers swap parameters or their storage, offloading
replaces states, a load replaces everything. So a step fetches the tensors anew and drops them at
its end. The findings about them are kept with their types, and hold while the types are the same.
"""

from collections.abc import Sequence
from itertools import compress

from torch import Tensor

from optgen.runtime.batch import flat_partitions, gradient_checks
from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.checks import check_step, check_types
from optgen.runtime.batch.context import StepContext, Stepping
from optgen.runtime.batch.make_batch import Gradients, States, checked_gradients, make_batch
from optgen.runtime.protocols import Group
from optgen.runtime.state.create import create_missing, store_int_counts
from optgen.runtime.state.placeholders import remove_placeholders
from optgen.runtime.state.snapshot import StateSnapshot
from optgen.runtime.tensors.dtensor import check_not_partial, redistribute_gradients
from optgen.runtime.torch_private import check_fused


def gather_batches(
    optimizer: Stepping, given: Sequence[Tensor | None] | None = None
) -> list[Batch]:
    """Return the batch of every group; create the states that are missing.

    The gradients are the parameters' own, or `given` for those of the only group.
    """
    context = optimizer._context
    if context.placeholders:
        snapshot(optimizer)
        remove_placeholders(context.placeholders, optimizer.state)
        context.placeholders = []
    old, context.batches, context.created = context.batches, {}, []
    states = States(optimizer.state)
    batches = []
    for group in optimizer.param_groups:
        members, found = with_gradient(group, given)
        grads = checked_gradients(optimizer, group, redistribute_gradients(members, found))
        known = old.get(id(group))
        batch = make_batch(optimizer, group, members, grads, states, known)
        if known is None or not known.is_like(batch):
            known = _rebuild(optimizer, batch, grads)
        else:
            known.take_tensors(batch)
        check_step(optimizer, known)
        batches.append(known)
        for each in (known, *known.parts):
            context.batches[id(each.group)] = each
    return batches


def with_gradient(
    group: Group, given: Sequence[Tensor | None] | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the parameters that have a gradient, and the gradients."""
    listed = group["params"]
    found = [param.grad for param in listed] if given is None else given
    grads = [grad for grad in found if grad is not None]
    if len(grads) == len(listed):
        return list(listed), grads
    return list(compress(listed, [grad is not None for grad in found])), grads


def snapshot(optimizer: Stepping) -> None:
    """Note the states as they are, before this step changes any, for `roll_back`."""
    context = optimizer._context
    if context.before is None:
        context.before = StateSnapshot(optimizer.state), list(context.placeholders)


def roll_back(optimizer: Stepping) -> None:
    """Restore the states of before the step, which has updated nothing."""
    context = optimizer._context
    if context.before is not None:
        before, context.placeholders = context.before
        before.restore(optimizer.state)
    context.forget()


def finish(optimizer: Stepping, stepped: bool) -> None:
    """Drop all tensors of a step; if it was skipped, also the states that would deny that."""
    context: StepContext = optimizer._context
    if optimizer.rule.step == "int":
        for batch in context.batches.values():
            store_int_counts(batch.dicts, batch.steps)
    for values, key in () if stepped else context.created:
        values.pop(key, None)
    context.forget()


def _rebuild(optimizer: Stepping, batch: Batch, grads: Gradients) -> Batch:
    """Check tensors of other types than in the last step; create the states that are missing."""
    group, rule, context = batch.group, optimizer.rule, optimizer._context
    check_not_partial(batch.members)
    gradient_checks.check_whole(optimizer, batch.members)
    flat_partitions.check(optimizer, group, context.original_params.get(id(group)))
    if group.get("fused"):
        for param in batch.members:
            check_fused(param)
    snapshot(optimizer)
    created = create_missing(rule, optimizer.state, group, batch.members, optimizer.defaults)
    context.created += created
    batch = make_batch(optimizer, group, batch.members, grads, States(optimizer.state))
    check_types(rule, batch)
    places = {(id(values), key) for values, key in created}
    for key in rule.fresh if created else ():
        batch.fresh[key] = [(id(values), key) in places for values in batch.dicts]
    batch.fill_parts()
    return batch
