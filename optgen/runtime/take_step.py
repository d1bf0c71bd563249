"""Take a step: gather its batches, choose a backend for each, prepare all of them, update.

For a rule that reduces over several parameters, all of them step together. Each update is a
generator. It stops at each reduction over several parameters. When all updates have stopped at the
same reduction, they go on with its result.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from optgen.runtime.backends import BACKENDS, FUSED, PreparedUpdate, backend, backend_of
from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.gather import finish, gather_batches, roll_back, snapshot, write_back
from optgen.runtime.batch.grad_scaler import is_skipped, must_unscale, unscale
from optgen.runtime.batch.gradients import zero_gradients
from optgen.runtime.batch.group_states import store_group_states
from optgen.runtime.batch.sparse_rows import check_rows
from optgen.runtime.batch.step_context import (
    CachedStep,
    OptimizerWithContext,
    Refusal,
    current_forced_lowering,
)
from optgen.runtime.choose_lowering import choose
from optgen.runtime.rule import Group, OptimizerLike, Rule
from optgen.runtime.rule import number as python_number
from optgen.runtime.sharded.consensus import (
    Consensus,
    note_batch,
    placed_gradients,
    reach_consensus,
)
from optgen.runtime.sharded.driver import Update, run
from optgen.runtime.tensors.dtensor import advance_versions, all_plain
from optgen.runtime.torch_private import data_ptr, numel


class _Prepared(NamedTuple):
    """A step after all checks: its batches, and the functions that update them."""

    batches: list[Batch]
    updates: list[PreparedUpdate]
    zeroed_grads: set[int]  # the identities of the gradients that kernels leave at zero


def step(optimizer: OptimizerWithContext, grads: Sequence[Tensor | None] | None = None) -> None:
    """Take one step of all groups; groups with the same fused lowering share its calls.

    If a check raises an error, nothing has been updated, and new states are removed. A step that is
    part of a joint one only tells that it has begun.

    Args:
        optimizer: the optimizer.
        grads: gradients for the parameters of the only group, instead of the parameters' own.
    """
    if optimizer._context.joint_step is not None:
        optimizer._context.joint_step()
        return
    try:
        prepared = None if _steps_at_once(optimizer, grads) else _prepare(optimizer, grads)
    except BaseException:
        roll_back(optimizer)
        raise
    if prepared is not None:
        _update(optimizer, prepared, grads)


def step_together(optimizers: Sequence[OptimizerWithContext]) -> None:
    """Take a step of several optimizers; if one cannot take it, none does.

    All but the last are checked: their cached steps say that they can be taken, or the steps are
    prepared. Then the last takes its step, the fast way if it can, and the others follow.
    """
    if not optimizers:
        return
    *first, last = optimizers
    checked_steps: list[tuple[OptimizerWithContext, _Prepared | None]] = []
    try:
        for optimizer in first:
            with _grad_mode_of(optimizer):
                checked_steps.append((optimizer, _check(optimizer)))
        with _grad_mode_of(last):
            prepared = None if _steps_at_once(last, None) else _prepare_jointly(last)
    except BaseException:
        for optimizer in optimizers:
            roll_back(optimizer)
        raise
    if prepared is not None:
        checked_steps.append((last, prepared))
    for optimizer, prepared in checked_steps:
        with _grad_mode_of(optimizer):
            # A cached step refuses after its check only if another thread has changed a tensor.
            if prepared is None and not _steps_at_once(optimizer, None):
                prepared = _prepare(optimizer, None)
            if prepared is not None:
                _update(optimizer, prepared, None)


def check_step(optimizers: Sequence[OptimizerWithContext]) -> None:
    """Raise the error that a step of one of these optimizers would raise; change nothing."""
    try:
        for optimizer in optimizers:
            with _grad_mode_of(optimizer):
                _check(optimizer)
    finally:
        for optimizer in optimizers:
            roll_back(optimizer)


def _grad_mode_of(optimizer: OptimizerWithContext) -> torch.set_grad_enabled:
    """Return the context that an optimizer's step runs in."""
    return torch.set_grad_enabled(bool(optimizer.defaults.get("differentiable")))


def _check(optimizer: OptimizerWithContext) -> _Prepared | None:
    """Check a step; return it if it had to be prepared, and None if its cached step can take it."""
    cached = _valid_cached_step(optimizer)
    return None if cached and cached.check(optimizer) else _prepare_jointly(optimizer)


def _prepare_jointly(optimizer: OptimizerWithContext) -> _Prepared:
    """Prepare a step, and also check what a C++ kernel finds out only when it updates.

    Such an error would come after another optimizer's update.
    """
    prepared = _prepare(optimizer, None)
    for batch in (part for whole in prepared.batches for part in whole.parts or (whole,)):
        if batch.dispatch_key.sparse_grad and batch.dispatch_key.device == "cpu":
            check_rows(batch)
    return prepared


def _steps_at_once(optimizer: OptimizerWithContext, grads: Sequence[Tensor | None] | None) -> bool:
    """Take the step without gathering batches, and return True; or change nothing."""
    if grads is not None or not _take_fast_path(optimizer):
        return False
    optimizer._context.saved_states = None
    return True


def _valid_cached_step(optimizer: OptimizerWithContext) -> CachedStep | None:
    """Return the cached step, unless something else than its tensors forbids to repeat it."""
    cached = optimizer._context.cached_step
    if cached is None or cached.forced_lowering != current_forced_lowering():
        return None
    # If groups differ, the gathered step raises the error, after its collectives.
    return None if _takes_inputs(optimizer) or why_groups_differ(optimizer) else cached


def _takes_inputs(optimizer: OptimizerWithContext) -> bool:
    """Tell whether this step takes extra inputs.

    A cached step cannot take them: the C++ reader finds only states of parameters and of groups.
    """
    return bool(optimizer._context.extra_inputs) or optimizer.rule.needs_inputs


def _update(
    optimizer: OptimizerWithContext,
    prepared: _Prepared,
    grads: Sequence[Tensor | None] | None,
) -> None:
    """Take a step that was prepared."""
    context, stepped = optimizer._context, False
    try:
        cached = [update() for update in prepared.updates]
        is_repeatable = len(cached) == 1 and not _takes_inputs(optimizer)
        context.cached_step = cached[0] if is_repeatable else None
        for batch in prepared.batches:
            write_back(batch, with_gradients=must_unscale(optimizer) or bool(prepared.zeroed_grads))
            advance_versions(batch.members)
        store_group_states(optimizer.rule, prepared.batches)
        if optimizer.rule.zero_grad:
            _zero_remaining_gradients(
                optimizer, grads, () if is_skipped(optimizer) else prepared.zeroed_grads
            )
        # `is_skipped` may wait for a device, so it is called only if the answer matters.
        stepped = not (context.created_states and is_skipped(optimizer))
    finally:
        finish(optimizer, stepped)


def _take_fast_path(optimizer: OptimizerWithContext) -> bool:
    """Take the step without gathering batches: the cached step, or a backend's first step.

    Return whether the step was taken, or skipped for the gradient scaler.
    """
    context, cached = optimizer._context, _valid_cached_step(optimizer)
    if cached is not None:
        context.cached_step = None  # stays None if a group's value raises an error
        skipped = not cached.skips_on_device and is_skipped(optimizer)
        if skipped or cached.run(optimizer):
            context.cached_step = cached
            if optimizer.rule.zero_grad and (skipped or not cached.zeroes_gradients):
                _zero_remaining_gradients(optimizer)
            return True
    if context.batches or _takes_inputs(optimizer) or why_groups_differ(optimizer):
        return False
    lowering = current_forced_lowering() or FUSED.get(_first_device(optimizer))
    if lowering is not None:
        snapshot(optimizer)  # it may create states, and fail
        context.cached_step = backend_of(optimizer.rule, lowering).begin(
            optimizer, lambda batch: choose(optimizer, batch)[0]
        )
    return context.cached_step is not None


def check_groups_agree(optimizer: OptimizerLike) -> None:
    """Raise a RuntimeError if groups have different values where the rule has one for all."""
    if message := why_groups_differ(optimizer):
        raise RuntimeError(message)


def why_groups_differ(optimizer: OptimizerLike) -> str:
    """Return an error message if groups have different values where the rule has one; else "".

    A tensor on a device is not read, and counts as equal: the host would wait for the device.
    """
    rule, groups = optimizer.rule, optimizer.param_groups
    for key in _keys_to_compare(rule, groups) if len(groups) > 1 else ():
        values = enumerate(group.get(key) for group in groups)
        found = {index: python_number(each) for index, each in values if _can_read(each)}
        if key in rule.equal_or_0:
            found = {index: each for index, each in found.items() if each != 0}
        first = next(iter(found), 0)
        for index, each in found.items():
            if each != found[first] and each == each and found[first] == found[first]:
                way_out = "the same" if key in rule.equal else "the same, or 0"
                return (
                    f"{type(optimizer).__name__} takes one {key} for all groups: group {first} has "
                    f"{found[first]}, and group {index} has {each}; give all groups {way_out}"
                )
    return ""


def _keys_to_compare(rule: Rule, groups: Sequence[Group]) -> list[str]:
    """Return the keys of values that must agree and are not one object; cached steps ask this."""
    first, *others = groups
    keys: dict[str, None] = {}
    for group in others:
        for key in rule.keys_of_equal_values:
            if group.get(key) is not first.get(key):
                keys[key] = None
    return list(keys)


def _can_read(value: object) -> bool:
    """Tell whether the numbers of a value can be read without waiting for a device."""
    items = value if isinstance(value, tuple | list) else (value,)
    return all(not isinstance(x, Tensor) or (x.is_cpu and numel(x) == 1) for x in items)


def _first_device(optimizer: OptimizerWithContext) -> str:
    """Return the device type of the first parameter; "" if there is no parameter."""
    return next((p.device.type for group in optimizer.param_groups for p in group["params"]), "")


def _prepare(optimizer: OptimizerWithContext, grads: Sequence[Tensor | None] | None) -> _Prepared:
    """Gather and check the batches of a step; if a backend refuses them, choose other lowerings.

    If ranks must agree on a step, a refusal is an error for all of them.
    """
    try:
        return _prepare_once(optimizer, grads)
    except Refusal:
        if _may_have_collectives(optimizer):
            raise
        roll_back(optimizer)
        optimizer._context.choose_anew()
        return _prepare_once(optimizer, grads)


def _prepare_once(
    optimizer: OptimizerWithContext, grads: Sequence[Tensor | None] | None
) -> _Prepared:
    """Gather and check the batches of a step."""
    optimizer._context.cached_step = None
    with _consensus(optimizer) as consensus:
        check_groups_agree(optimizer)
        batches = gather_batches(optimizer, placed_gradients(optimizer, grads, consensus))
        by_lowering = _by_lowering(optimizer, batches)
        if consensus:
            for lowering, batches_of_lowering in by_lowering.items():
                for batch in batches_of_lowering:
                    note_batch(consensus, optimizer.rule, lowering, batch)
        zeroed_grads = set[int]()
        if optimizer.rule.zero_grad:
            _check_gradients_not_shared(optimizer, batches)
            zeroed_grads = _zeroed_by_kernels(optimizer.rule, by_lowering)
        if optimizer.rule.wide:  # the updates of the rule's parameters wait for one another
            wide_update = _prepare_wide(optimizer, by_lowering, consensus)
            return _Prepared(batches, [wide_update], zeroed_grads)
        lowerings = sorted(by_lowering, key=list(BACKENDS).index, reverse=True)
        updates = [
            backend_of(optimizer.rule, each).prepare(optimizer, by_lowering[each], consensus)
            for each in lowerings
        ]
        return _Prepared(batches, updates, zeroed_grads)


def _by_lowering(
    optimizer: OptimizerWithContext, batches: Sequence[Batch]
) -> dict[str, list[Batch]]:
    """Return the batches of a step, or their parts, by the lowering that takes them."""
    by_lowering: dict[str, list[Batch]] = {}
    for batch in (part for whole in batches for part in whole.parts or (whole,)):
        if batch.params:
            lowering, _ = choose(optimizer, batch)
            by_lowering.setdefault(lowering, []).append(batch)
    return by_lowering


def _check_gradients_not_shared(optimizer: OptimizerWithContext, batches: Sequence[Batch]) -> None:
    """Raise an error if parameters share a gradient: one update would zero it before the next."""
    grads = (grad for batch in batches for grad in batch.grads)
    addresses = [data_ptr(grad) for grad in grads if not grad.is_sparse and numel(grad)]
    if len(set(addresses)) < len(addresses):
        raise RuntimeError(
            f"{type(optimizer).__name__} leaves gradients at zero, and two parameters share a "
            "gradient, or a parameter is listed twice: give each parameter a gradient of its own, "
            "and list it once"
        )


def _zeroed_by_kernels(rule: Rule, by_lowering: Mapping[str, Sequence[Batch]]) -> set[int]:
    """Return the identities of the gradients that kernels leave at zero."""
    return {
        id(grad)
        for lowering, batches in by_lowering.items()
        if backend_of(rule, lowering).zeroes_gradients
        for batch in batches
        if not batch.dispatch_key.sparse_grad
        for grad in batch.grads
    }


def _zero_remaining_gradients(
    optimizer: OptimizerWithContext,
    step_grads: Sequence[Tensor | None] | None = None,
    zeroed_grads: Collection[int] = (),
) -> None:
    """Write zeros into the gradients of a step, except those whose identity is in `zeroed_grads`.

    `step_grads` are the gradients that `step` was given, if any.
    """
    own_grads = (p.grad for group in optimizer.param_groups for p in group["params"])
    grads = own_grads if step_grads is None else step_grads
    zero_gradients([each for each in grads if each is not None and id(each) not in zeroed_grads])


@contextmanager
def _consensus(optimizer: OptimizerWithContext) -> Iterator[Consensus | None]:
    """Yield a consensus of all ranks if the step can have collectives, else None."""
    if _may_have_collectives(optimizer):
        with reach_consensus(optimizer) as consensus:
            yield consensus
    else:
        yield None


def _may_have_collectives(optimizer: OptimizerWithContext) -> bool:
    """Tell whether the step can have collectives, so that all ranks must take it alike."""
    if optimizer.rule.elementwise:
        return False
    return not all(all_plain(group["params"]) for group in optimizer.param_groups)


def _prepare_wide(
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
