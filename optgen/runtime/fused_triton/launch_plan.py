"""The launch plan of a step: the buckets of its tensors, and how to find them again."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat, zip_longest
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.fused_triton.bucket import Bucket, Key, Share
from optgen.runtime.fused_triton.table import Hypers, Staging, flatten
from optgen.runtime.fused_triton.tensor_streams import Streams
from optgen.runtime.fused_triton.workspace import Needs
from optgen.runtime.protocols import Lowered
from optgen.runtime.rule import Rule
from optgen.runtime.state.device_scalars import move_to_params

_dtype = attrgetter("dtype")


class LaunchPlan:
    """The buckets of all tensors that take part in a step, and how to find them again."""

    def __init__(self, optimizer: Lowered, batches: list[Batch], staging: Staging | None) -> None:
        self._rule = rule = optimizer.rule
        self._module = importlib.import_module(f"{optimizer.lowerings}.fused_triton")
        self._needs: Mapping[tuple[bool, ...], Needs] = getattr(self._module, "NEEDS", {})
        self._staging = staging  # a graph that was captured reads it at every replay
        self._batches = batches if staging is None else []
        self._hypers: dict[torch.device, Hypers] = {}
        shares: dict[Key, dict[int, list[int]]] = {}
        for number, batch in enumerate(batches):
            _move_scalars(rule, batch)
            for i, key in enumerate(_keys(rule, batch)):
                shares.setdefault(key, {}).setdefault(number, []).append(i)
        self._buckets = [
            self._bucket(key, [Share(n, tuple(i)) for n, i in members.items()], batches)
            for key, members in shares.items()
        ]

    def _bucket(self, key: Key, shares: list[Share], batches: list[Batch]) -> Bucket:
        rule = self._rule
        hypers = self._hypers.get(key.device)
        if hypers is None:
            width = len(flatten(batches[0].group, rule))
            hypers = Hypers(len(batches), width, key.device, self._staging)
            self._hypers[key.device] = hypers
        fresh = [
            [batches[share.group].fresh[name][i] for share in shares for i in share.indices]
            for name in rule.fresh
        ]
        like = [state for state in rule.states if state.shape != "scalar"]
        states = {state.key: state.shape for state in like}
        kept = frozenset((1, *(i for i, state in enumerate(like, 2) if not state.written)))
        streams = _streams(rule, shares, batches)
        needs = self._needs.get(key.facts)
        known = (states, streams, fresh, hypers.values, self._staging, needs)
        return Bucket(key, shares, *known, kept)

    def fits(self, batches: list[Batch]) -> bool:
        """Whether the buckets still hold: the same tensors, in the same layouts."""
        if len(batches) != len(self._batches) or not all(map(is_, batches, self._batches)):
            return False
        if any(batch.any_fresh for batch in batches):
            return False
        return all(b.fits(_streams(self._rule, b.shares, batches)) for b in self._buckets)

    def update(self, optimizer: Lowered, batches: list[Batch]) -> None:
        """Launch every bucket's kernels."""
        values = list(chain.from_iterable(flatten(w.group, self._rule) for w in batches))
        for hypers in self._hypers.values():
            hypers.set(values)
        grad_scale = getattr(optimizer, "grad_scale", None)
        found_inf = getattr(optimizer, "found_inf", None)
        for bucket in self._buckets:
            bucket.loss_scale = _on_device(grad_scale, bucket.key.device)
            bucket.found_inf = _on_device(found_inf, bucket.key.device)
            groups = [batches[share.group].group for share in bucket.shares]
            bucket.run(self._module.update, _streams(self._rule, bucket.shares, batches), groups)
            bucket.loss_scale = bucket.found_inf = None
        torch.autograd.graph.increment_version(chain.from_iterable(w.members for w in batches))


def _parts(rule: Rule, batch: Batch) -> Iterator[tuple[bool, list[Any]]]:
    """Every list of a work's tensors, in the order of a table's rows, and whether it is scalar."""
    yield False, batch.params
    yield False, batch.grads
    for state, tensors in zip(rule.states, batch.states, strict=True):
        if state.shape != "scalar":
            yield False, tensors
    if rule.step is not None:
        yield True, batch.steps
    for state, tensors in zip(rule.states, batch.states, strict=True):
        if state.shape == "scalar":
            yield True, tensors


def _keys(rule: Rule, batch: Batch) -> Iterator[Key]:
    """The bucket of every tensor of a work."""
    parts = list(_parts(rule, batch))
    likes = zip_longest(*(map(_dtype, tensors) for scalar, tensors in parts if not scalar))
    scalars = zip(*(map(_dtype, tensors) for scalar, tensors in parts if scalar), strict=True)
    devices = (param.device for param in batch.params)
    return map(Key, devices, likes, chain(scalars, repeat(())), repeat(batch.dispatch_key.facts))


def _streams(rule: Rule, shares: Sequence[Share], batches: list[Batch]) -> Streams:
    """The rows of tensors of one bucket."""
    picked = [[s.pick(tensors) for _, tensors in _parts(rule, batches[s.group])] for s in shares]
    return [list(chain.from_iterable(row)) for row in zip(*picked, strict=True)]


def _move_scalars(rule: Rule, batch: Batch) -> None:
    """Bring steps and scalar states to their parameters' devices."""
    for key, tensors in _scalars(rule, batch):
        if key == "step" and rule.step == "int":  # the state holds a number, and gets one back
            pairs = zip(tensors, batch.params, strict=True)
            tensors[:] = [step.to(param.device) for step, param in pairs]
        else:
            tensors[:] = move_to_params(batch.dicts, key, batch.params)


def _scalars(rule: Rule, batch: Batch) -> Iterator[tuple[str, list[Any]]]:
    if rule.step is not None:
        yield "step", batch.steps
    for state, tensors in zip(rule.states, batch.states, strict=True):
        if state.shape == "scalar":
            yield state.key, tensors


def _on_device(value: Tensor | None, device: torch.device) -> Tensor | None:
    return None if value is None else value.to(device, non_blocking=True)
