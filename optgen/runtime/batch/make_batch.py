"""Make the batch of one group: fetch the states, and note the signature of the tensors."""

from collections.abc import Mapping
from itertools import chain
from operator import attrgetter, is_
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.dispatch_key import dispatch_keys
from optgen.runtime.batch.extra_inputs import Inputs, flags_of_inputs, input_columns
from optgen.runtime.batch.gradient_checks import check_for_whole_params
from optgen.runtime.batch.gradients import Gradients
from optgen.runtime.batch.group_states import group_state_columns
from optgen.runtime.batch.view_tensors import view_tensors
from optgen.runtime.protocols import Group, OptimizerLike
from optgen.runtime.rule import Rule
from optgen.runtime.state.create import state_keys
from optgen.runtime.state.scalars import counts_as_tensors
from optgen.runtime.tensors.dtensor import dtensor_signature, real_local_views
from optgen.runtime.tensors.group_view import seen_params, seen_view
from optgen.runtime.torch_private import is_plain_class, numel

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
    rule, view = optimizer.rule, seen_view(optimizer.rule, group)
    seen = seen_params(rule, group, members)
    keys = state_keys(rule, group)
    step_keys = [] if rule.step is None else ["step"]
    dicts, are_distinct = states.of(members) if keys or step_keys else ([], False)
    shapes = list(map(_shape, members))
    states_by_key, signature = _fetch_states(rule, keys, step_keys, members, seen, dicts)
    extra_columns = input_columns(rule, inputs, members) if rule.inputs else {}
    signature += [shapes, [] if view is None else [view], [rule.rank(group)]]
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
        needs_no_views=needs_no_views and view is None,
        ordinary=grads.ordinary and (are_distinct or len(set(map(id, members))) == len(members)),
    )
    if view is not None:
        check_for_whole_params(optimizer, members)
        batch.meta_views = seen
        view_tensors(rule, batch)
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
            rule, members, params, grads, batch.ordinary, batch.seen_params
        )
        if extra_columns:
            all_flags = flags_of_inputs(rule, extra_columns, len(members))
            pairs = zip(batch.dispatch_keys, all_flags, strict=True)
            batch.dispatch_keys = [key._replace(input_flags=flags) for key, flags in pairs]
        batch.split_into_parts()


def _fetch_states(
    rule: Rule,
    keys: list[str],
    step_keys: list[str],
    members: list[Tensor],
    seen: list[Tensor],
    dicts: list[dict[str, Any]],
) -> tuple[dict[str, list[Any]], list[list[Any]]]:
    """Return the states and step counts by key, and the signature; no states if any is missing."""
    try:
        states_by_key = {key: [values[key] for values in dicts] for key in step_keys}
        states_by_key |= _state_columns(rule, keys, seen, dicts)
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
    rule: Rule, keys: list[str], seen: list[Tensor], dicts: list[dict[str, Any]]
) -> dict[str, list[Any]]:
    """Return the states by key.

    A parameter whose shape has no such state has None; the list is empty if no parameter has one.
    """
    if not rule.facts:
        return {key: [values[key] for values in dicts] for key in keys}
    columns = {}
    for state in rule.states:
        if state.key in keys:
            suitable = state.suits_each(seen)
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
