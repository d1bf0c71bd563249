"""Split a batch into buckets: one call of a generated for-loop or foreach function takes one."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.rule import Rule


class Bucket(NamedTuple):
    """The tensors of a batch that one call can take."""

    columns: list[list[Any]]  # in the order of a lowering's arguments
    fresh: dict[str, bool]  # which states this step has created
    places: list[int]  # of the tensors in the batch


def buckets(rule: Rule, batch: Batch, by_value: bool) -> Iterator[Bucket]:
    """Yield buckets of tensors with equal devices, dtypes and freshness.

    With `by_value`, the tensors of a bucket also have equal step counts and scalar states. If the
    rule is not elementwise, the tensors of a bucket have one shape, and so have the whole
    parameters that they are shards of. All ranks that hold shards of the same parameters therefore
    have the same buckets.
    """
    keys = [
        _kinds(rule, batch),
        *_dtypes(batch),
        *(batch.fresh[key] for key in rule.fresh if batch.any_fresh),
    ]
    states = list(zip(rule.states, batch.states, strict=True))
    if by_value:
        scalars = [batch.steps, *(column for state, column in states if state.shape == "scalar")]
        for column in filter(None, scalars):
            keys += [_values(column), _occurrences(column)]
    rows: dict[tuple[Any, ...], list[int]] = {}
    for index, key in enumerate(zip(*keys, strict=True)):
        rows.setdefault(key, []).append(index)
    suited = batch.params[0]  # all parameters of a batch have the same shape predicates
    lists = [batch.params, batch.grads, *(c for state, c in states if state.suits(suited))]
    if rule.step is not None:
        lists.append(batch.steps)
    for places in rows.values():
        whole = len(places) == len(batch.params)
        columns = [c if whole or not c else [c[place] for place in places] for c in lists]
        fresh = {f"fresh_{key}": batch.fresh[key][places[0]] for key in rule.fresh}
        yield Bucket(columns, fresh, places)


def _kinds(rule: Rule, batch: Batch) -> list[int]:
    """Number the tensors by device, dtypes and maybe shape; none of these changes in a batch."""
    kinds: list[int] | None = batch.memo.get("kinds")
    if kinds is None:
        known: dict[tuple[Any, ...], int] = {}
        columns = [batch.members, batch.params, *(column for column in batch.states if column)]
        kinds = batch.memo["kinds"] = [
            known.setdefault(
                (
                    row[1].device,
                    None if rule.elementwise else (row[0].shape, row[1].shape),
                    *(tensor.dtype for tensor in row[1:]),
                ),
                len(known),
            )
            for row in zip(*columns, strict=True)
        ]
    return kinds


def _dtypes(batch: Batch) -> list[list[torch.dtype]]:
    """Return the dtypes of gradients if they have several; they may change with every step."""
    return [[grad.dtype for grad in batch.grads]] if len(batch.grad_dtypes) > 1 else []


def _occurrences(scalars: list[Tensor]) -> list[int]:
    """Return how often each tensor came before.

    Parameters that share one step count go into different buckets: each must count a step.
    """
    if len(set(map(id, scalars))) == len(scalars):
        return [0] * len(scalars)
    seen: dict[int, int] = {}
    occurrences = []
    for scalar in scalars:
        occurrences.append(seen.get(id(scalar), 0))
        seen[id(scalar)] = occurrences[-1] + 1
    return occurrences


def _values(scalars: list[Tensor]) -> list[float]:
    """Read 0-dim tensors; the values of tensors on a device come in one transfer."""
    if all(scalar.is_cpu for scalar in scalars):
        return [scalar.item() for scalar in scalars]
    values: list[float] = torch.stack([s.to(scalars[0].device) for s in scalars]).tolist()
    return values
