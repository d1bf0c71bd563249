"""Gather the batches of a step: parameters with a gradient, gradients and states, group by group.

Anything may change between two steps: wrappers swap parameters or their storage, offloading
replaces states, a load replaces everything. So each step fetches the tensors, and drops them at its
end. Results of checks are kept with the signature of a batch (the classes, dtypes and sizes of its
tensors), and are valid while it stays equal.
"""

from collections.abc import Iterable

from optgen.runtime.batch import flat_partitions, gradient_checks
from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.casts import check_params, note_narrow_params
from optgen.runtime.batch.checks import check_signature, check_step
from optgen.runtime.batch.context import OptimizerWithContext, StepContext
from optgen.runtime.batch.extra_inputs import Inputs, checked_inputs
from optgen.runtime.batch.gradients import (
    Gradients,
    ParamsAndGradients,
    checked_gradients,
    params_and_gradients,
)
from optgen.runtime.batch.group_states import create_group_states
from optgen.runtime.batch.make_batch import States, make_batch
from optgen.runtime.batch.view_checks import check_views
from optgen.runtime.state.create import create_missing
from optgen.runtime.state.placeholders import remove_placeholders
from optgen.runtime.state.scalars import store_int_counts
from optgen.runtime.state.snapshot import StateSnapshot
from optgen.runtime.tensors.dtensor import check_not_partial
from optgen.runtime.torch_private import check_fused


def gather_batches(
    optimizer: OptimizerWithContext, gradients: Iterable[ParamsAndGradients] | None = None
) -> list[Batch]:
    """Return the checked batch of every group; create missing states.

    `gradients` holds, for each group, the parameters with a gradient and these gradients. By
    default, they are the parameters' own gradients.
    """
    context = optimizer._context
    check_views(optimizer)
    note_narrow_params(optimizer.rule, optimizer.param_groups)
    if context.placeholders:
        snapshot(optimizer)
        remove_placeholders(context.placeholders, optimizer.state)
        context.placeholders = []
    last_batches, context.batches, context.created_states = context.batches, {}, []
    group_ids = set(map(id, optimizer.param_groups))
    context.earlier_batches = {
        key: kept for key, kept in context.earlier_batches.items() if key in group_ids
    }
    states = States(optimizer.state)
    inputs = (
        checked_inputs(optimizer.param_groups, context.extra_inputs) if context.extra_inputs else {}
    )
    create_group_states(optimizer)
    batches = []
    if gradients is None:
        gradients = map(params_and_gradients, optimizer.param_groups)
    for group, (members, raw_grads) in zip(optimizer.param_groups, gradients, strict=True):
        grads = checked_gradients(optimizer, group, raw_grads)
        last = last_batches.get(id(group))
        batch = make_batch(optimizer, group, members, grads, states, last, inputs)
        known = context.batch_like(id(group), batch, last)
        if known is None:
            batch = _rebuild(optimizer, batch, grads, inputs)
        else:
            known.take_tensors(batch)
            batch = known
        check_step(optimizer, batch)
        batches.append(batch)
        for part in (batch, *batch.parts):
            context.batches[id(part.group)] = part
    return batches


def snapshot(optimizer: OptimizerWithContext) -> None:
    """Save the states for `roll_back`, before this step changes any state."""
    context = optimizer._context
    if context.saved_states is None:
        context.saved_states = StateSnapshot(optimizer.state), list(context.placeholders)


def roll_back(optimizer: OptimizerWithContext) -> None:
    """Restore the states after a step that failed before it updated anything."""
    context = optimizer._context
    if context.saved_states is not None:
        state_snapshot, context.placeholders = context.saved_states
        state_snapshot.restore(optimizer.state)
    context.forget()


def finish(optimizer: OptimizerWithContext, stepped: bool) -> None:
    """Store integer step counts, and drop all tensors of a step.

    Unless `stepped`, the step was skipped or failed. Then also remove the fresh states that this
    step created: the next step must find them missing.
    """
    context: StepContext = optimizer._context
    if optimizer.rule.step == "int":
        for batch in context.batches.values():
            store_int_counts(batch.dicts, batch.step_counts)
    if not stepped:
        for values, key in context.created_states:
            values.pop(key, None)
    context.forget()


def _rebuild(
    optimizer: OptimizerWithContext, batch: Batch, grads: Gradients, inputs: Inputs
) -> Batch:
    """Check a batch whose signature or dispatch keys are new; return it with all states created."""
    group, rule, context = batch.group, optimizer.rule, optimizer._context
    check_not_partial(batch.members)
    gradient_checks.check_for_whole_params(optimizer, batch.members)
    flat_partitions.check(optimizer, group, context.original_params)
    check_params(optimizer, group, batch.members)
    if group.get("fused"):
        for param in batch.members:
            check_fused(param)
    snapshot(optimizer)
    created = create_missing(
        rule,
        optimizer.state,
        group,
        batch.members,
        optimizer.defaults,
        groups=optimizer.param_groups,
    )
    context.created_states += created
    states = States(optimizer.state)
    batch = make_batch(optimizer, group, batch.members, grads, states, inputs=inputs)
    check_signature(rule, batch)
    created_ids = {(id(values), key) for values, key in created}
    for key in rule.fresh if created else ():
        batch.fresh[key] = [(id(values), key) in created_ids for values in batch.dicts]
    batch.fill_parts()
    return batch
