"""Split a batch into buckets; a bucket is updated by one call of a for-loop or foreach function."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.rule import Rule


class Bucket(NamedTuple):
    """The tensors of a batch that one call can take."""

    columns: list[list[Any]]  # in the order of a lowering's arguments
    fresh: dict[str, bool]  # arguments "fresh_<state>": whether this step has created the state
    indices: list[int]  # of the bucket's parameters in the batch


def buckets(rule: Rule, batch: Batch, equal_scalars: bool) -> Iterator[Bucket]:
    """Yield buckets of tensors with equal devices, dtypes and `fresh` flags.

    With `equal_scalars`, the tensors of a bucket also have equal step counts and scalar states. If
    the rule is not elementwise, the tensors of a bucket have equal shapes. If they are shards,
    their whole parameters also have equal shapes, so all ranks form the same buckets.
    """
    keys = [
        _type_ids(rule, batch),
        *_gradient_dtypes(batch),
        *(batch.fresh[key] for key in rule.fresh if batch.any_fresh),
    ]
    states = list(zip(rule.states, batch.states, strict=True))
    if equal_scalars:
        scalars = [batch.step_counts, *(column for state, column in states if state.is_host_scalar)]
        for column in filter(None, scalars):
            keys += [_values(column), _occurrences(column)]
    indices_by_key: dict[tuple[Any, ...], list[int]] = {}
    for index, key in enumerate(zip(*keys, strict=True)):
        indices_by_key.setdefault(key, []).append(index)
    # A fact has one answer for all parameters of a batch.
    example_param = batch.params[0] if batch.dispatch_key.sharding is None else batch.seen_params[0]
    lists = [batch.params, batch.grads, *(c for state, c in states if state.suits(example_param))]
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
