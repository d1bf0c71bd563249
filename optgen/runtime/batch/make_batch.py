"""Assemble the work of one group: its gradients as lowerings see them, its states, their types."""

from collections.abc import Mapping
from itertools import chain
from operator import attrgetter, is_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from optgen.runtime.batch import gradient_checks
from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.dispatch_key import dispatch_keys
from optgen.runtime.protocols import Group, Optimized
from optgen.runtime.rule import Rule
from optgen.runtime.state.create import counts_as_tensors, state_keys
from optgen.runtime.tensors.dtensor import dtensor_specs
from optgen.runtime.tensors.real_views import all_plain, reals
from optgen.runtime.torch_private import is_plain_class, numel

_dtype = attrgetter("dtype")
_layout = attrgetter("layout")
_device = attrgetter("device")
_is_cpu = attrgetter("is_cpu")
_shape = attrgetter("shape")


class Gradients(NamedTuple):
    """The gradients of one group as lowerings see them."""

    tensors: list[Tensor]
    ordinary: bool  # all are dense memory and no more


class States:
    """An optimizer's states by parameter; where those come in their order, no tensor is hashed."""

    def __init__(self, states: Mapping[Tensor, dict[str, Any]]) -> None:
        self._states = states
        self._params, self._dicts = list(states), list(states.values())
        self._next = 0

    def of(self, members: list[Tensor]) -> tuple[list[dict[str, Any]], bool]:
        """The members' states, and whether it is known that no member stands there twice."""
        first, end = self._next, self._next + len(members)
        params = self._params[first:end]
        if len(params) == len(members) and all(map(is_, params, members)):
            self._next = end
            return self._dicts[first:end], True
        nothing: dict[str, Any] = {}
        return [self._states.get(param, nothing) for param in members], False


def checked_gradients(optimizer: Optimized, group: Group, grads: list[Tensor]) -> Gradients:
    """Check the gradients, and return them as lowerings see them."""
    rule = optimizer.rule
    if rule.gradient != "sparse_only" and set(map(_layout, grads)) <= {torch.strided}:
        seen = reals(grads)
        return Gradients(seen, all_plain(seen))
    whole = any(not state.rows and state.present(group) for state in rule.states)
    seen = []
    for grad in grads:
        if grad.layout is not torch.strided or rule.gradient == "sparse_only":
            gradient_checks.check(optimizer, group, grad)
        scalar = grad.is_sparse and grad.sparse_dim() == 0
        seen.append(grad.to_dense() if grad.is_sparse and (whole or scalar) else grad)
    return Gradients(reals(seen), False)


def make_batch(
    optimizer: Optimized,
    group: Group,
    members: list[Tensor],
    grads: Gradients,
    states: States,
    known: Batch | None = None,
) -> Batch:
    """Make the work of given parameters and gradients from the states that there are.

    What the step before had `known` of the group holds for tensors of the same types.
    """
    rule = optimizer.rule
    keys = state_keys(rule, group)
    counted = [] if rule.step is None else ["step"]
    dicts, unique = states.of(members) if keys or counted else ([], False)
    shapes = list(map(_shape, members))
    raw, types = _fetch_states(rule, keys, counted, members, dicts)
    types.append(shapes)
    same = known is not None and known.types == types
    real = known.real if known and same else _are_real(types)
    columns = [raw.get(state.key, []) for state in rule.states]
    batch = Batch(
        group=group,
        members=members,
        params=list(members) if real else reals(members, written=True),
        grads=grads.tensors,
        states=columns if real else [_real_views(column) for column in columns],
        steps=counts_as_tensors(dicts) if rule.step == "int" and raw else raw.get("step", []),
        dicts=dicts,
        fresh={key: [False] * len(members) for key in rule.fresh},
        dispatch_keys=[],
        types=types,
        shapes=shapes,
        real=real,
        ordinary=grads.ordinary and (unique or len(set(map(id, members))) == len(members)),
    )
    if known and same and batch.ordinary and known.ordinary and not rule.facts:
        batch.dispatch_keys = known.dispatch_keys  # these depend on nothing else
    else:
        batch.dispatch_keys = dispatch_keys(
            rule, batch.members, batch.params, grads.tensors, batch.ordinary
        )
        batch.split_into_parts()
    return batch


def _fetch_states(
    rule: Rule,
    keys: list[str],
    counted: list[str],
    members: list[Tensor],
    dicts: list[dict[str, Any]],
) -> tuple[dict[str, list[Any]], list[list[Any]]]:
    """The states by key, step counts among them, and their types: none where some are missing."""
    try:
        raw = {key: [values[key] for values in dicts] for key in counted}
        raw |= _columns(rule, keys, members, dicts)
        seen = raw if not rule.facts else {key: _present(column) for key, column in raw.items()}
        looked_at = [*keys, *(counted if rule.step == "tensor" else [])]
        types = _types(rule, [members, *map(seen.__getitem__, looked_at)])
        types += [list(map(numel, seen[key])) for key in looked_at]
    except (KeyError, AttributeError):  # not created yet, or None in an old checkpoint
        return {}, _types(rule, [members])
    return raw, [*types, ["complete", *keys]]


def _columns(
    rule: Rule, keys: list[str], members: list[Tensor], dicts: list[dict[str, Any]]
) -> dict[str, list[Any]]:
    """The states by key; None for a parameter whose shape it does not suit, if only some do."""
    if not rule.facts:
        return {key: [values[key] for values in dicts] for key in keys}
    columns = {}
    for state in rule.states:
        if state.key in keys:
            suits = state.suits_each(members)
            pairs = zip(dicts, suits, strict=True)
            column = [values[state.key] if suited else None for values, suited in pairs]
            if suits != [value is not None for value in column]:
                raise KeyError(state.key)  # None in an old checkpoint
            columns[state.key] = column if any(suits) else []
    return columns


def _present(column: list[Any]) -> list[Any]:
    return [value for value in column if value is not None]


def _real_views(column: list[Any]) -> list[Any]:
    """The states as a lowering sees them, None where a parameter has none."""
    found = iter(reals(_present(column), written=True))
    return [None if value is None else next(found) for value in column]


def _types(rule: Rule, columns: list[list[Tensor]]) -> list[list[Any]]:
    # torch keeps SGD's momentum as sparse as its gradients; anything else is never sparse.
    asked = (type, _dtype) if rule.gradient == "dense" else (type, _dtype, _layout)
    types: list[list[Any]] = [list(map(of, column)) for of in asked for column in columns]
    on_cpu = all(map(_is_cpu, chain.from_iterable(columns)))
    return [*types, [] if on_cpu else list(map(_device, columns[0])), *dtensor_specs(columns)]


def _are_real(types: list[list[Any]]) -> bool:
    return all(map(_is_real, set(chain.from_iterable(types))))


def _is_real(kind: Any) -> bool:
    """Tell whether tensors of this class, or this dtype, are what lowerings see."""
    if isinstance(kind, torch.dtype):
        return not kind.is_complex
    return not isinstance(kind, type) or is_plain_class(kind)
