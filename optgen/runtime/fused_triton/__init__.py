"""The fused Triton lowering at run time: one launch for the scalars, one a phase for all tensors.

Tensors are gathered into buckets once; after that a step compares addresses, uploads what moved and
launches. Everything else, learning rates and step counts included, the device reads where it lies.
Nothing here waits for the device.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain, repeat, zip_longest
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from optgen.runtime.collect import collect, remember
from optgen.runtime.device_scalars import adopt
from optgen.runtime.fused_triton.bucket import Bucket, Key, Share
from optgen.runtime.fused_triton.streams import Streams
from optgen.runtime.fused_triton.table import Hypers, Staging, flatten
from optgen.runtime.fused_triton.workspace import Needs
from optgen.runtime.rows import touched
from optgen.runtime.work import Work

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer
    from optgen.runtime.rule import Lowered, Rule

Group = dict[str, Any]
_dtype = attrgetter("dtype")


def obstacle(device: torch.device) -> str:
    """Why this lowering cannot run on a device; empty where it can."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if device.type == "cuda":
        return ""
    if device.type == "cpu":
        if os.environ.get("TRITON_INTERPRET") != "1":
            return "CPU tensors need TRITON_INTERPRET=1 set from the start"
        return "" if find_spec("numpy") else "Triton's interpreter needs numpy, not installed here"
    return f"there is no Triton lowering for {device.type} tensors"


def prepare(optimizer: GeneratedOptimizer, groups: list[Group]) -> Callable[[], None]:
    """Check the groups, and make what is missing of their tables; return what launches."""
    collected = [work for group in groups if (work := collect(optimizer, group)).params]
    parts = [touched(optimizer.rule, work) for work in collected if work.trait.rows]
    works = [work for work in collected if not work.trait.rows]
    rows = [part.rows for part in parts]
    remember(optimizer)
    # Sparse gradients touch other rows in every step, so their buckets are new ones.
    calls = [(Roster(optimizer, rows, None), rows)] if rows else []
    if works:
        calls.append((_roster(optimizer, works), works))

    def update() -> None:
        for roster, taken in calls:
            roster.update(optimizer, taken)
        for part in parts:
            part.put_back()

    return update


def _roster(optimizer: GeneratedOptimizer, works: list[Work]) -> Roster:
    roster = _rosters.get(optimizer)
    if _capturing(works):
        roster = Roster(optimizer, works, [])
        _captured.setdefault(optimizer, []).append(roster)
    elif roster is None or not roster.fits(works):
        roster = _rosters[optimizer] = Roster(optimizer, works, None)
    return roster


class Roster:
    """The buckets of all tensors that take part in a step, and how to find them again."""

    def __init__(self, optimizer: Lowered, works: list[Work], staging: Staging | None) -> None:
        self._rule = rule = optimizer.rule
        self._module = importlib.import_module(f"{optimizer.lowerings}.fused_triton")
        self._needs: Mapping[tuple[bool, ...], Needs] = getattr(self._module, "NEEDS", {})
        self._staging = staging  # a graph that was captured reads it at every replay
        self._works = works if staging is None else []
        self._hypers: dict[torch.device, Hypers] = {}
        shares: dict[Key, dict[int, list[int]]] = {}
        for number, work in enumerate(works):
            _move_scalars(rule, work)
            for i, key in enumerate(_keys(rule, work)):
                shares.setdefault(key, {}).setdefault(number, []).append(i)
        self._buckets = [
            self._bucket(key, [Share(n, tuple(i)) for n, i in members.items()], works)
            for key, members in shares.items()
        ]

    def _bucket(self, key: Key, shares: list[Share], works: list[Work]) -> Bucket:
        rule = self._rule
        hypers = self._hypers.get(key.device)
        if hypers is None:
            width = len(flatten(works[0].group, rule))
            hypers = Hypers(len(works), width, key.device, self._staging)
            self._hypers[key.device] = hypers
        fresh = [
            [works[share.group].fresh[name][i] for share in shares for i in share.indices]
            for name in rule.fresh
        ]
        like = [state for state in rule.states if state.shape != "scalar"]
        states = {state.key: state.shape for state in like}
        kept = frozenset((1, *(i for i, state in enumerate(like, 2) if not state.written)))
        streams = _streams(rule, shares, works)
        needs = self._needs.get(key.facts)
        known = (states, streams, fresh, hypers.values, self._staging, needs)
        return Bucket(key, shares, *known, kept)

    def fits(self, works: list[Work]) -> bool:
        """Whether the buckets still hold: the same tensors, in the same layouts."""
        if len(works) != len(self._works) or not all(map(is_, works, self._works)):
            return False
        if any(work.any_fresh for work in works):
            return False
        return all(b.fits(_streams(self._rule, b.shares, works)) for b in self._buckets)

    def update(self, optimizer: Lowered, works: list[Work]) -> None:
        """Launch every bucket's kernels."""
        values = list(chain.from_iterable(flatten(w.group, self._rule) for w in works))
        for hypers in self._hypers.values():
            hypers.set(values)
        grad_scale = getattr(optimizer, "grad_scale", None)
        found_inf = getattr(optimizer, "found_inf", None)
        for bucket in self._buckets:
            bucket.loss_scale = _on_device(grad_scale, bucket.key.device)
            bucket.found_inf = _on_device(found_inf, bucket.key.device)
            groups = [works[share.group].group for share in bucket.shares]
            bucket.run(self._module.update, _streams(self._rule, bucket.shares, works), groups)
            bucket.loss_scale = bucket.found_inf = None
        torch.autograd.graph.increment_version(chain.from_iterable(w.members for w in works))


_rosters: WeakKeyDictionary[GeneratedOptimizer, Roster] = WeakKeyDictionary()
_captured: WeakKeyDictionary[GeneratedOptimizer, list[Roster]] = WeakKeyDictionary()
"""Tables of captured graphs: a graph reads its own for as long as it is replayed."""


def _capturing(works: list[Work]) -> bool:
    on_cuda = any(work.params[0].is_cuda for work in works)
    return on_cuda and torch.cuda.is_current_stream_capturing()


def _parts(rule: Rule, work: Work) -> Iterator[tuple[bool, list[Any]]]:
    """Every list of a work's tensors, in the order of a table's rows, and whether it is scalar."""
    yield False, work.params
    yield False, work.grads
    for state, tensors in zip(rule.states, work.states, strict=True):
        if state.shape != "scalar":
            yield False, tensors
    if rule.step is not None:
        yield True, work.steps
    for state, tensors in zip(rule.states, work.states, strict=True):
        if state.shape == "scalar":
            yield True, tensors


def _keys(rule: Rule, work: Work) -> Iterator[Key]:
    """The bucket of every tensor of a work."""
    parts = list(_parts(rule, work))
    likes = zip_longest(*(map(_dtype, tensors) for scalar, tensors in parts if not scalar))
    scalars = zip(*(map(_dtype, tensors) for scalar, tensors in parts if scalar), strict=True)
    devices = (param.device for param in work.params)
    return map(Key, devices, likes, chain(scalars, repeat(())), repeat(work.trait.facts))


def _streams(rule: Rule, shares: Sequence[Share], works: list[Work]) -> Streams:
    """The rows of tensors of one bucket."""
    picked = [[s.pick(tensors) for _, tensors in _parts(rule, works[s.group])] for s in shares]
    return [list(chain.from_iterable(row)) for row in zip(*picked, strict=True)]


def _move_scalars(rule: Rule, work: Work) -> None:
    """Bring steps and scalar states to their parameters' devices."""
    for key, tensors in _scalars(rule, work):
        if key == "step" and rule.step == "int":  # the state holds a number, and gets one back
            pairs = zip(tensors, work.params, strict=True)
            tensors[:] = [step.to(param.device) for step, param in pairs]
        else:
            tensors[:] = adopt(work.dicts, key, work.params)


def _scalars(rule: Rule, work: Work) -> Iterator[tuple[str, list[Any]]]:
    if rule.step is not None:
        yield "step", work.steps
    for state, tensors in zip(rule.states, work.states, strict=True):
        if state.shape == "scalar":
            yield state.key, tensors


def _on_device(value: Tensor | None, device: torch.device) -> Tensor | None:
    return None if value is None else value.to(device, non_blocking=True)
