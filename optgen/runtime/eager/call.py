"""Call the generated for-loop or foreach function that updates a batch, bucket by bucket.

The functional form of a rule writes no intermediate result in place, so that autograd and graph
capture can follow it. It serves steps that are differentiable or capturable.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.sparse_rows import check_rows, gather_rows
from optgen.runtime.eager.parts import whole_chunks
from optgen.runtime.eager.working_copies import chunks_in_one_dtype, has_several_dtypes
from optgen.runtime.rule import Group, HasLowerings, OptimizerLike, Rule, number
from optgen.runtime.torch_private import capturable_devices

Split: TypeAlias = Callable[[Rule, list[list[Any]]], Iterable[list[list[Any]]]]


class Call(NamedTuple):
    """A batch, the generated function that updates it, and arguments for the function."""

    batch: Batch
    function: Function
    hypers: dict[str, Any]
    functional: bool  # whether `function` is the functional form
    takes_grads: bool  # whether the function takes the gradients as they are, dense or sparse
    split: Split  # divides the lists of a bucket among several calls

    @classmethod
    def of(cls, optimizer: HasLowerings, batch: Batch, lowering: str) -> Call:
        """Check a batch, and find its function."""
        rule, group = optimizer.rule, batch.group
        functional = bool(group.get("differentiable") or group.get("capturable"))
        hypers = hyper_arguments(rule, group, functional, lowering)
        if functional:
            check_functional(rule, batch)
            hypers["capturable"] = bool(group.get("capturable"))
        if batch.dispatch_key.sparse_grad:
            check_rows(batch)
        # The functional form is written for one tensor; a TensorList computes like one.
        module, name = ("forloop", "update_functional") if functional else (lowering, "update")
        function = load_function(optimizer.lowerings, module, variant_name(name, rule, batch))
        takes_grads = not batch.dispatch_key.sparse_grad or (
            rule.scatter_adds and not functional and not any(map(torch.is_complex, batch.grads))
        )
        split = _split(rule, batch, functional, lowering)
        return cls(batch, function, hypers, functional, takes_grads, split)

    def update(self, rule: Rule) -> None:
        """Update the batch, bucket by bucket; or only rows, if it cannot take sparse gradients."""
        touched = None if self.takes_grads else gather_rows(rule, self.batch)
        batch = touched.row_batch if touched else self.batch
        for lists, fresh, _ in buckets(rule, batch, equal_scalars=not self.functional):
            for part in self.split(rule, lists):
                self.function(*part, **self.hypers, **fresh)
        if touched:
            touched.scatter_rows()


def _split(rule: Rule, batch: Batch, functional: bool, lowering: str) -> Split:
    """Return the function that divides the lists of a bucket among several calls."""
    split = _in_chunks if functional and lowering == "foreach" and rule.elementwise else _undivided
    if not has_several_dtypes(rule, batch):
        return split

    def split_in_one_dtype(rule: Rule, lists: list[list[Any]]) -> Iterator[list[list[Any]]]:
        for chunk in chunks_in_one_dtype(rule, lists, batch.group):
            yield from split(rule, chunk)

    return split_in_one_dtype


def _in_chunks(rule: Rule, lists: list[list[Any]]) -> Iterable[list[list[Any]]]:
    return whole_chunks(lists)


def _undivided(rule: Rule, lists: list[list[Any]]) -> Iterable[list[list[Any]]]:
    return (lists,)


class Bucket(NamedTuple):
    """The tensors of a batch that one call can take."""

    columns: list[list[Any]]  # in the order of a lowering's arguments
    fresh: dict[str, bool]  # arguments "fresh_<state>": whether this step has created the state
    indices: list[int]  # of the bucket's parameters in the batch


def buckets(rule: Rule, batch: Batch, equal_scalars: bool) -> Iterator[Bucket]:
    """Yield buckets of tensors with equal devices, dtypes and `fresh` flags.

    With `equal_scalars`, the tensors of a bucket also have equal step counts and scalar states,
    but for the streams of random numbers. If the rule is not elementwise, the tensors of a bucket
    have equal shapes. If they are shards, their whole parameters also have equal shapes, so all
    ranks form the same buckets.
    """
    keys = [
        _type_ids(rule, batch),
        *_gradient_dtypes(batch),
        *(batch.fresh[key] for key in rule.fresh if batch.any_fresh),
    ]
    states = list(zip(rule.states, batch.states, strict=True))
    if equal_scalars:
        scalars = [c for s, c in states if s.is_host_scalar and s.key not in rule.streams]
        for column in filter(None, [batch.step_counts, *scalars]):
            keys += [_values(column), _occurrences(column)]
    indices_by_key: dict[tuple[Any, ...], list[int]] = {}
    for index, key in enumerate(zip(*keys, strict=True)):
        indices_by_key.setdefault(key, []).append(index)
    # A fact has one answer for all parameters of a batch.
    example_param = batch.params[0] if batch.dispatch_key.sharding is None else batch.seen_params[0]
    existing = (c for state, c in states if state.suits(example_param, batch.group))
    lists = [batch.params, batch.grads, *existing]
    if rule.step is not None:
        lists.append(batch.step_counts)
    for indices in indices_by_key.values():
        has_whole_batch = len(indices) == len(batch.params)
        columns = [
            c if has_whole_batch or not c else [c[index] for index in indices] for c in lists
        ]
        fresh = {f"fresh_{key}": batch.fresh[key][indices[0]] for key in rule.fresh}
        yield Bucket(columns, fresh, indices)


def _type_ids(rule: Rule, batch: Batch) -> list[int]:
    """Return an id for each parameter: of its device, its dtypes and, for some rules, its shape.

    An elementwise rule ignores the shape. `batch.memo` keeps the ids: a batch is used again only
    for tensors of the same types.
    """
    type_ids: list[int] | None = batch.memo.get("type_ids")
    if type_ids is None:
        ids: dict[tuple[Any, ...], int] = {}
        columns = [batch.seen_params, batch.params, *(column for column in batch.states if column)]
        type_ids = batch.memo["type_ids"] = [
            ids.setdefault(
                (
                    tensors[0].device,
                    None if rule.elementwise else (seen.shape, tensors[0].shape),
                    *(tensor.dtype for tensor in tensors),
                ),
                len(ids),
            )
            for seen, *tensors in zip(*columns, strict=True)
        ]
    return type_ids


def _gradient_dtypes(batch: Batch) -> list[list[torch.dtype]]:
    """Return the dtypes of the gradients as one more list of keys; no list if all are equal.

    Unlike the properties in `_type_ids`, the dtypes of gradients can change in every step.
    """
    return [[grad.dtype for grad in batch.grads]] if len(batch.grad_dtypes) > 1 else []


def _occurrences(scalars: list[Tensor]) -> list[int]:
    """Return, for each tensor, how often it stands earlier in the list.

    Parameters that share one step count go into different buckets: each must add 1.
    """
    if len(set(map(id, scalars))) == len(scalars):
        return [0] * len(scalars)
    counts: dict[int, int] = {}
    occurrences = []
    for scalar in scalars:
        occurrences.append(counts.get(id(scalar), 0))
        counts[id(scalar)] = occurrences[-1] + 1
    return occurrences


def _values(scalars: list[Tensor]) -> list[float]:
    """Return the values of 0-dim tensors; one transfer brings all values from a device."""
    if all(scalar.is_cpu for scalar in scalars):
        return [scalar.item() for scalar in scalars]
    values: list[float] = torch.stack([s.to(scalars[0].device) for s in scalars]).tolist()
    return values


def hyper_arguments(rule: Rule, group: Group, functional: bool, lowering: str) -> dict[str, Any]:
    """Return the hyperparameters as the lowering takes them.

    The functional form gets tensors as they are, for autograd and graph capture. Any other form
    gets numbers, with one exception: the for-loop gets a tensor learning rate as a tensor, because
    torch's for-loop computes the step size in the dtype of that tensor.
    """
    arguments: dict[str, Any] = {}
    for key, value in zip(rule.hypers, rule.hyper_values(group), strict=True):
        if isinstance(value, (tuple, list)):
            arguments[key] = tuple(map(_without_axes if functional else number, value))
        elif functional:
            arguments[key] = _without_axes(value)
        elif lowering == "forloop" and key in rule.tensor_hypers and isinstance(value, Tensor):
            arguments[key] = _without_axes(value.detach())
        else:
            arguments[key] = number(value)
    return arguments


def _without_axes(value: Any) -> Any:
    """Return a one-element tensor as a 0-dim tensor, and any other value itself."""
    return value.squeeze() if isinstance(value, Tensor) and value.dim() else value


Function: TypeAlias = Callable[..., Any]


@cache
def load_function(package: str, module: str, function: str) -> Function:
    """Import one function of a generated lowering."""
    loaded: Function = getattr(importlib.import_module(f"{package}.{module}"), function)
    return loaded


@cache
def find_function(package: str, module: str, function: str) -> Function | None:
    """Import one function of a generated lowering; return None if there is no such function."""
    has_function = hasattr(importlib.import_module(f"{package}.{module}"), function)
    return load_function(package, module, function) if has_function else None


def variant_name(function: str, rule: Rule, batch: Batch) -> str:
    """Return the name of a function's variant for the shapes of a batch.

    If a rule depends on facts, its generated modules have a variant for each set of answers.
    """
    facts_and_answers = zip(rule.facts, batch.dispatch_key.facts, strict=True)
    return "_".join(
        [function, *(fact if holds else f"not_{fact}" for fact, holds in facts_and_answers)]
    )


def check_functional(rule: Rule, batch: Batch) -> None:
    """Raise torch's error if the functional form cannot take a batch."""
    if batch.group.get("capturable"):
        devices = capturable_devices()
        scalars = {
            f"{state.key}s": column
            for state, column in zip(rule.states, batch.states, strict=True)
            if state.shape == "scalar" and column
        }
        columns = [*scalars.values(), *([batch.step_counts] if batch.step_counts else [])]
        for tensors in zip(batch.params, *columns, strict=True):
            device_types = {tensor.device.type for tensor in tensors}
            if len(device_types) > 1 or not device_types.issubset(devices):
                names = ", ".join(["params", *reversed(scalars)])
                comma = "," if len(scalars) > 1 else ""
                raise AssertionError(
                    f"If capturable=True, {names}{comma} and state_steps must be on supported "
                    f"devices: {devices}."
                )
    states = [
        param_states[state.key]  # the state itself: a view of it in the batch is no leaf
        for state, column in zip(rule.states, batch.states, strict=True)
        if not (state.step_argument or state.of_group)
        for param_states, value in zip(batch.stored_dicts, column, strict=False)
        if value is not None
    ]
    written_tensors = [*batch.members, *states]
    if torch.is_grad_enabled() and any(t.is_leaf and t.requires_grad for t in written_tensors):
        raise RuntimeError(
            "a leaf Variable that requires grad is being used in an in-place operation."
        )
    if any(step.requires_grad for step in batch.step_counts):
        raise RuntimeError("`requires_grad` is not supported for `step` in differentiable mode")


def check_shards(optimizer: OptimizerLike, batch: Batch) -> None:
    """Raise an error for shards in a group that needs the functional form.

    The functional form of a rule that needs whole parameters cannot take shards.
    """
    group, sharding = batch.group, batch.dispatch_key.sharding
    if sharding is not None and (group.get("differentiable") or group.get("capturable")):
        raise RuntimeError(
            f"{type(optimizer).__name__} needs whole parameters, and this rank holds a shard "
            f"({sharding.placements}): a step is possible with neither differentiable=True nor "
            "capturable=True, so set both to False"
        )
