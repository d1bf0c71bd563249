"""Gather the batches of a step: parameters with a gradient, gradients and states, group by group.

Anything may change between two steps: wrappers swap parameters or their storage, offloading
replaces states, a load replaces everything. So each step fetches the tensors, and drops them at its
end. Results of checks are kept with the signature of a batch (the classes, dtypes and sizes of its
tensors), and are valid while it stays equal.

If a group has a view, the tensors are viewed in its shape. The memory of some tensors cannot be
viewed so: that of a transposed parameter, for example, in most shapes. Such tensors are copied; the
step updates the copies and writes them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch, ViewCopy, dispatch_keys
from optgen.runtime.batch.check_batch import check_signature, check_step
from optgen.runtime.batch.check_extra_inputs import (
    Inputs,
    checked_inputs,
    flags_of_inputs,
    input_columns,
)
from optgen.runtime.batch.check_params import (
    check_for_whole_params,
    check_not_flat,
    check_params,
    check_views,
    note_narrow_params,
)
from optgen.runtime.batch.gradients import (
    Gradients,
    ParamsAndGradients,
    checked_gradients,
    params_and_gradients,
)
from optgen.runtime.batch.group_states import create_group_states, group_state_columns
from optgen.runtime.batch.pieces import cut_into_pieces
from optgen.runtime.batch.step_context import (
    OptimizerWithContext,
    StateSnapshot,
    StepContext,
    remove_placeholders,
)
from optgen.runtime.rule import Group, OptimizerLike, Rule
from optgen.runtime.state.create import create_missing, state_keys
from optgen.runtime.state.pieces import Seen, seen_of_group, suits_parameters
from optgen.runtime.state.scalars import counts_as_tensors, store_int_counts
from optgen.runtime.tensors.dtensor import check_not_partial, dtensor_signature, real_local_views
from optgen.runtime.tensors.group_view import seen_params
from optgen.runtime.tensors.quantized import QuantizedTensor
from optgen.runtime.tensors.sharding import shard_sizes
from optgen.runtime.torch_private import check_fused, is_plain_class, numel


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
        checked_inputs(optimizer.rule, optimizer.param_groups, context.extra_inputs)
        if context.extra_inputs
        else {}
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
            batch = _rebuild(optimizer, batch, members, grads, inputs)
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
            store_int_counts(batch.stored_dicts, batch.step_counts)
    if not stepped:
        for values, key in context.created_states:
            values.pop(key, None)
    context.forget()


def _rebuild(
    optimizer: OptimizerWithContext,
    batch: Batch,
    members: list[Tensor],
    grads: Gradients,
    inputs: Inputs,
) -> Batch:
    """Check a batch whose signature or dispatch keys are new; return it with all states created."""
    group, rule, context = batch.group, optimizer.rule, optimizer._context
    check_not_partial(members)
    check_for_whole_params(optimizer, members)
    check_not_flat(optimizer, group, context.original_params)
    check_params(optimizer, group, members)
    if group.get("fused"):
        for param in members:
            check_fused(param)
    snapshot(optimizer)
    created = create_missing(
        rule,
        optimizer.state,
        group,
        members,
        optimizer.defaults,
        groups=optimizer.param_groups,
    )
    context.created_states += created
    states = States(optimizer.state)
    batch = make_batch(optimizer, group, members, grads, states, inputs=inputs)
    check_signature(rule, batch)
    created_ids = {(id(values), key) for values, key in created}
    for key in rule.fresh if created else ():
        batch.fresh[key] = [(id(values), key) in created_ids for values in batch.stored_dicts]
    batch.fill_parts()
    return batch


_dtype = attrgetter("dtype")
_layout = attrgetter("layout")
_device = attrgetter("device")
_is_cpu = attrgetter("is_cpu")
_shape = attrgetter("shape")


class States:
    """An optimizer's states by parameter; no tensor is hashed for look-ups in the states' order."""

    def __init__(self, states: Mapping[Tensor, dict[str, Any]]) -> None:
        self._states = states
        self._params, self._dicts = list(states), list(states.values())
        self._next = 0

    def of(self, members: list[Tensor]) -> tuple[list[dict[str, Any]], bool]:
        """Return the states of the members, and whether all members are known to be distinct."""
        first, end = self._next, self._next + len(members)
        params = self._params[first:end]
        if len(params) == len(members) and all(map(is_, params, members)):
            self._next = end
            return self._dicts[first:end], True
        no_states: dict[str, Any] = {}
        return [self._states.get(param, no_states) for param in members], False


def make_batch(
    optimizer: OptimizerLike,
    group: Group,
    members: list[Tensor],
    grads: Gradients,
    states: States,
    previous: Batch | None = None,
    inputs: Inputs = MappingProxyType({}),
) -> Batch:
    """Make the batch of parameters and gradients, with the states that exist.

    Args:
        previous: the group's batch of the last step; reused in part if its signature is equal.
        inputs: the extra inputs of this step.
    """
    rule, view = optimizer.rule, optimizer.rule.view(group)
    pieces = rule.pieces(group)
    seen = members if rule.sees_whole(group) else seen_of_group(rule, group, members)
    keys = state_keys(rule, group)
    step_keys = [] if rule.step is None else ["step"]
    dicts, are_distinct = states.of(members) if keys or step_keys else ([], False)
    shapes = list(map(_shape, members))
    states_by_key, signature = _fetch_states(rule, group, keys, step_keys, members, seen, dicts)
    extra_columns = input_columns(rule, inputs, members) if rule.inputs else {}
    signature += [shapes, [] if view is None else [view], list(pieces or ()), [rule.rank(group)]]
    signature += [list(map(type, _present(column))) for column in extra_columns.values()]
    has_same_signature = previous is not None and previous.signature == signature
    needs_no_views = (
        previous.needs_no_views if previous and has_same_signature else _need_no_views(signature)
    )
    if rule.group_states:
        states_by_key = states_by_key | group_state_columns(rule, group, members)
    columns = [
        (extra_columns if state.step_argument else states_by_key).get(state.key, [])
        for state in rule.states
    ]
    batch = Batch(
        group=group,
        group_id=id(group),
        members=members,
        params=list(members) if needs_no_views else real_local_views(members, written=True),
        grads=grads.tensors,
        states=columns if needs_no_views else [_real_views(column) for column in columns],
        step_counts=_step_counts(rule, states_by_key, dicts),
        dicts=dicts,
        fresh={key: [False] * len(members) for key in rule.fresh},
        dispatch_keys=[],
        signature=signature,
        shapes=shapes,
        needs_no_views=needs_no_views and view is None and pieces is None,
        ordinary=grads.ordinary and (are_distinct or len(set(map(id, members))) == len(members)),
    )
    if not (view is None and pieces is None):
        check_for_whole_params(optimizer, members)
    if view is not None:
        batch.meta_views = seen_params(rule, group, members)
        view_tensors(rule, batch)
    if pieces is not None:
        cut_into_pieces(rule, batch, pieces)
        columns_by_key = zip(rule.states, batch.states, strict=True)
        extra_columns = {s.key: column for s, column in columns_by_key if s.step_argument}
    _set_dispatch_keys(rule, batch, previous if has_same_signature else None, extra_columns)
    return batch


def _step_counts(
    rule: Rule, states_by_key: dict[str, list[Any]], dicts: list[dict[str, Any]]
) -> list[Any]:
    """Return the step counts as tensors; [] if states are missing or the rule has no step count."""
    if rule.step == "int" and states_by_key:
        return counts_as_tensors(dicts)
    return states_by_key.get("step", [])


def _set_dispatch_keys(
    rule: Rule, batch: Batch, previous: Batch | None, extra_columns: dict[str, list[Any]]
) -> None:
    """Set the dispatch keys and parts of a batch; `previous` is None, or has the same signature."""
    if previous and batch.ordinary and previous.ordinary and not (rule.facts or extra_columns):
        batch.dispatch_keys = previous.dispatch_keys  # the keys depend on the signature only
    else:
        members, params, grads = batch.members, batch.params, batch.grads
        batch.dispatch_keys = dispatch_keys(
            rule, members, params, grads, batch.ordinary, batch.group, batch.seen_params
        )
        if extra_columns:
            all_flags = flags_of_inputs(rule, extra_columns, len(members))
            pairs = zip(batch.dispatch_keys, all_flags, strict=True)
            batch.dispatch_keys = [key._replace(input_flags=flags) for key, flags in pairs]
        batch.split_into_parts()


def _fetch_states(
    rule: Rule,
    group: Group,
    keys: list[str],
    step_keys: list[str],
    members: list[Tensor],
    seen: Sequence[Seen],
    dicts: list[dict[str, Any]],
) -> tuple[dict[str, list[Any]], list[list[Any]]]:
    """Return the states and step counts by key, and the signature; no states if any is missing."""
    try:
        states_by_key = {key: [values[key] for values in dicts] for key in step_keys}
        states_by_key |= _state_columns(rule, group, keys, seen, dicts)
        present = (
            states_by_key
            if not rule.facts
            else {key: _present(column) for key, column in states_by_key.items()}
        )
        tensor_keys = [*keys, *(step_keys if rule.step == "tensor" else [])]
        signature = _signature(rule, [members, *map(present.__getitem__, tensor_keys)])
        signature += [list(map(numel, present[key])) for key in tensor_keys]
    except (KeyError, AttributeError):  # not created yet, or None in an old checkpoint
        return {}, _signature(rule, [members])
    return states_by_key, [*signature, ["complete", *keys]]


def _state_columns(
    rule: Rule, group: Group, keys: list[str], seen: Sequence[Seen], dicts: list[dict[str, Any]]
) -> dict[str, list[Any]]:
    """Return the states by key.

    A parameter whose shape has no such state has None; the list is empty if no parameter has one.
    """
    if not rule.facts:
        return {key: [values[key] for values in dicts] for key in keys}
    columns = {}
    for state in rule.states:
        if state.key in keys:
            suitable = suits_parameters(state, seen, group)
            pairs = zip(dicts, suitable, strict=True)
            column = [values[state.key] if is_suitable else None for values, is_suitable in pairs]
            if suitable != [value is not None for value in column]:
                raise KeyError(state.key)  # None in an old checkpoint
            columns[state.key] = column if any(suitable) else []
    return columns


def _present(column: list[Any]) -> list[Any]:
    return [value for value in column if value is not None]


def _real_views(column: list[Any]) -> list[Any]:
    """Return states as a lowering sees them; None stays None."""
    views = iter(real_local_views(_present(column), written=True))
    return [None if value is None else next(views) for value in column]


def _signature(rule: Rule, columns: list[list[Tensor]]) -> list[list[Any]]:
    """Return the classes, dtypes, layouts, devices and local tensors' properties of all tensors.

    Layouts are left out if no tensor can be sparse, and devices if all tensors are on the CPU.
    """
    # A state can be sparse only if gradients can: torch's SGD then makes a sparse momentum.
    getters = (type, _dtype) if rule.gradient == "dense" else (type, _dtype, _layout)
    signature: list[list[Any]] = [list(map(get, column)) for get in getters for column in columns]
    on_cpu = all(map(_is_cpu, chain.from_iterable(columns)))
    return [
        *signature,
        [] if on_cpu else list(map(_device, columns[0])),
        *dtensor_signature(columns),
    ]


def _need_no_views(signature: list[list[Any]]) -> bool:
    """Tell whether lowerings see all tensors of this signature as they are."""
    return not any(map(_needs_view, set(chain.from_iterable(signature))))


def _needs_view(entry: Any) -> bool:
    """Tell whether lowerings see tensors of this class or dtype through a view."""
    if isinstance(entry, torch.dtype):
        return entry.is_complex
    return isinstance(entry, type) and not is_plain_class(entry)


Sizes = Sequence[int]


def view_tensors(rule: Rule, batch: Batch) -> None:
    """Replace a batch's parameters, gradients and states by views shaped like `batch.meta_views`.

    States with a number for each row or column, and scalar states, already have their shape in
    the view.

    Raises:
        RuntimeError: A gradient or a state has another shape than its parameter.
    """
    viewer = _Viewer(batch)
    states = [
        viewer.views(state.key, column, state.written) if state.shape == "like" else column
        for state, column in zip(rule.states, batch.states, strict=True)
    ]
    grads = viewer.views("a gradient", batch.grads, is_gradient=True)
    batch.params, batch.grads = viewer.views("a parameter", batch.params), grads
    batch.states, batch.view_copies = states, viewer.copies


def write_back(batch: Batch, with_gradients: bool) -> None:
    """Write updated copies to their originals; copies of gradients only if the step wrote them."""
    for copy in batch.view_copies:
        if with_gradients or not copy.is_gradient:
            copy.write_back()


class _Viewer:
    """Views the tensors of a batch, or copies them; keeps the copies that a step updates."""

    def __init__(self, batch: Batch) -> None:
        self._shapes = [param.shape for param in batch.params]
        pairs = zip(batch.members, batch.meta_views, strict=True)
        self._sizes = [shard_sizes(member, meta_view.shape) for member, meta_view in pairs]
        # Copies by the identity of the original: a parameter that is listed twice needs one copy.
        self._copies_by_id: dict[int, Tensor] = {}
        self.copies: list[ViewCopy] = []

    def views(
        self, name: str, column: list[Any], written: bool = True, is_gradient: bool = False
    ) -> list[Any]:
        """Return views or copies of tensors; an absent state is None and stays None."""
        views: list[Tensor | None] = []
        for index, tensor in enumerate(column):
            if tensor is None:
                views.append(None)
                continue
            if tensor.shape != self._shapes[index]:
                raise _shape_error(name, tensor.shape, self._shapes[index])
            view, is_copy = self._view(tensor, self._sizes[index])
            if is_copy and written:
                self.copies.append(ViewCopy(index, tensor, view, is_gradient))
            views.append(view)
        return views

    def _view(self, tensor: Tensor, sizes: Sizes) -> tuple[Tensor, bool]:
        """View a tensor in other sizes, or copy it; tell whether it is a copy."""
        try:
            if isinstance(tensor, QuantizedTensor):
                return tensor.view_codes(sizes), False
            return tensor.view(sizes), False
        except RuntimeError:  # torch cannot tell in advance whether a view is possible
            copy = self._copies_by_id.get(id(tensor))
            if copy is None:
                copy = self._copies_by_id[id(tensor)] = tensor.reshape(sizes)
            return copy, True


def _shape_error(name: str, shape: torch.Size, param_shape: torch.Size) -> RuntimeError:
    return RuntimeError(
        f"{name} has the shape {tuple(shape)}, but its parameter {tuple(param_shape)}: a step with "
        "a view needs equal shapes"
    )
