"""Update batches through Triton kernels.

A step of a bucket launches the scalar program, then each sweep and each finish.
Tensors are sorted into buckets once. After that a step uploads the addresses and the
hyperparameters that have changed, and launches. A hyperparameter that is a tensor on the device is
copied within the device. The kernels read step counts and scalar states in place. Nothing here
waits for the device.

A repeated step gathers no batches: the C++ reader finds its tensors (cached_step.py).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence, Set
from importlib.util import find_spec
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch

from optgen.runtime.batch.batch import Batch, codes_obstacle, has_pieces
from optgen.runtime.batch.gather import snapshot
from optgen.runtime.batch.sparse_rows import gather_rows
from optgen.runtime.batch.step_context import (
    CachedStep,
    OptimizerWithContext,
    Refusal,
    current_forced_lowering,
)
from optgen.runtime.fused_triton.cached_step import CachedCalls, CachedLaunches
from optgen.runtime.fused_triton.sharded_step import why_not_shards
from optgen.runtime.fused_triton.sort_into_buckets import KeptBuckets, StepBuckets, workspaces
from optgen.runtime.rule import HasLowerings
from optgen.runtime.sharded.consensus import Consensus
from optgen.runtime.sharded.driver import Update, run
from optgen.runtime.tensors.sharding import Sharding
from optgen.runtime.torch_private import capturing

_MAX_CACHED_CALLS = 8  # of a function; each is for lists of one length


class FusedTritonBackend:
    """Backend for CUDA tensors, and for CPU tensors under Triton's interpreter."""

    zeroes_gradients = False

    def __init__(self) -> None:
        # For each optimizer, the buckets for all batches, under the key None; the buckets for each
        # batch if the rule reduces over parameters.
        self._kept: WeakKeyDictionary[Any, dict[Any, KeptBuckets]] = WeakKeyDictionary()
        # A graph reads its tables for as long as it is replayed.
        self._captured_buckets: WeakKeyDictionary[Any, list[StepBuckets]] = WeakKeyDictionary()
        # The last buckets of a function; the batch of each is empty between calls.
        self._function_buckets: WeakKeyDictionary[Any, KeptBuckets] = WeakKeyDictionary()
        self._cached_steps: WeakKeyDictionary[Any, CachedLaunches] = WeakKeyDictionary()
        # By the length of the lists and the forced lowering, the latest first.
        self._cached_calls: WeakKeyDictionary[Any, dict[tuple[int, str | None], CachedCalls]] = (
            WeakKeyDictionary()
        )
        self._call_lock = Lock()
        # Why Triton cannot compile the kernels of a lowered rule, by its module.
        self._why_refused: dict[str, str] = {}

    def build_or_reason(self, lowered: HasLowerings, batch: Batch) -> str:
        """Return a short reason why Triton cannot take this batch; "" if it can."""
        if reason := lowered.rule.why_not_in_triton:
            return reason
        if reason := codes_obstacle(lowered.rule, batch, "fused_triton"):
            return reason
        if class_name := batch.overriding_class:
            return f"a state of class {class_name}"
        reason = self.build_function_or_reason(lowered, batch.params[0].device)
        if not reason and batch.dispatch_key.sharding is not None:
            placements = batch.dispatch_key.sharding.placements
            if why := _why_not_shards(lowered, batch):
                return f"{why}, and these are sharded: {placements}"
        return reason

    def build_function_or_reason(
        self, function: HasLowerings, device: torch.device, dtypes: Set[torch.dtype] = frozenset()
    ) -> str:
        """Return a short reason why no kernel can run a function over lists; "" if one can."""
        why_refused = self._why_refused.get(function.lowerings, "")
        return function.rule.why_not_in_triton or device_obstacle(device) or why_refused

    def prepare(
        self, optimizer: OptimizerWithContext, batches: Sequence[Batch], consensus: Consensus | None
    ) -> Callable[[], CachedStep | None]:
        """Find or make the buckets; return a function that launches their kernels.

        New buckets check the shapes and devices of their tensors. Touched rows are gathered here,
        and the states are saved for a rollback.
        """
        touched_rows = [
            gather_rows(optimizer.rule, b)
            for b in batches
            if b.dispatch_key.sparse_grad and b.params
        ]
        shards: dict[Sharding, list[Batch]] = {}
        dense_batches = []
        for batch in batches:
            if batch.dispatch_key.sharding is not None:
                shards.setdefault(batch.dispatch_key.sharding, []).append(batch)
            elif not batch.dispatch_key.sparse_grad and batch.params:
                dense_batches.append(batch)
        row_batches = [each.row_batch for each in touched_rows]
        snapshot(optimizer)
        # Sparse gradients touch other rows in every step, so they need new buckets.
        dense_and_rows = (
            [(self._new_buckets(optimizer, row_batches), row_batches)] if row_batches else []
        )
        if dense_batches:
            dense_and_rows.append((self._buckets_for(optimizer, dense_batches), dense_batches))

        sharded_buckets = [
            (self._buckets_for(optimizer, each, (each[0].group_id, sharding)), each)
            for sharding, each in shards.items()
        ]

        def update() -> CachedStep | None:
            for step_buckets, bucket_batches in sharded_buckets:
                run(list(step_buckets.sharded_updates(optimizer, bucket_batches)))
                step_buckets.finish(optimizer, bucket_batches)
            for step_buckets, bucket_batches in dense_and_rows:
                step_buckets.update(optimizer, bucket_batches)
            for each in touched_rows:
                each.scatter_rows()
            can_repeat = dense_batches and not touched_rows and not shards
            return self.cached_step(optimizer, dense_batches) if can_repeat else None

        return update

    def wide_updates(
        self, optimizer: OptimizerWithContext, batch: Batch, consensus: Consensus | None
    ) -> Iterable[Update]:
        """Return the updates of a batch of a rule that reduces over several parameters."""
        snapshot(optimizer)
        step_buckets = self._buckets_for(optimizer, [batch], (batch.group_id, batch.dispatch_key))
        return step_buckets.wide_updates(batch)

    def begin(self, optimizer: OptimizerWithContext, choose: Callable[[Batch], str]) -> None:
        """Return None: this backend gathers batches in a first step as in any other."""

    def cached_step(
        self, optimizer: OptimizerWithContext, batches: Sequence[Batch]
    ) -> CachedStep | None:
        """Return the cached step that repeats an update of batches.

        Return None if the next step must gather its tensors.
        """
        kept_buckets = self._kept.get(optimizer, {}).get(None)
        if kept_buckets is None or capturing() or has_pieces(optimizer):
            return None
        step_buckets = kept_buckets.find(lambda each: each.is_for(batches))
        if step_buckets is None or step_buckets.marks_fresh:
            return None
        cached = self._cached_steps.get(optimizer)
        if cached is None or not cached.is_for(optimizer):
            cached = CachedLaunches.of(optimizer, batches, step_buckets)
        if cached is None:
            return None
        self._cached_steps[optimizer] = cached
        if not cached.is_worth_keeping():
            return None
        cached.add(step_buckets, batches, optimizer.param_groups, kept_buckets)
        return cached

    def call(self, function: HasLowerings, batch: Batch) -> CachedCalls | None:
        """Update the lists of a function through buckets that fit; return a cached call or None.

        Buckets keep no tensor alive.
        """
        if capturing():
            captured = StepBuckets(function, [batch], is_captured=True)
            self._captured_buckets.setdefault(function, []).append(captured)
            captured.update(function, [batch])
            return None
        with self._call_lock:
            kept_buckets = self._function_buckets.setdefault(function, KeptBuckets())
            step_buckets = kept_buckets.find(lambda each: _update_if_it_fits(each, function, batch))
            if step_buckets is None:
                step_buckets = self._new_buckets(function, [batch])
                step_buckets.update(function, [batch])
                cached = self._cached_call(function, batch, step_buckets)
                batch.drop_tensors()
                kept_buckets.add(step_buckets)
                return cached
            return self._cached_call(function, batch, step_buckets)

    def _cached_call(
        self, function: HasLowerings, batch: Batch, step_buckets: StepBuckets
    ) -> CachedCalls | None:
        """Return the cached call for lists of this length, with buckets that have updated them.

        Return None if the next call must make a batch.
        """
        if batch.indices:  # a part: the reader reads whole lists
            return None
        calls = self._cached_calls.setdefault(function, {})
        length = len(batch.params)
        key = length, current_forced_lowering()
        cached = calls.pop(key, None) or CachedCalls.of(
            function, length, batch.params[0].device, self._call_lock
        )
        if cached is None or not cached.add(step_buckets, batch):
            return None
        latest = list(calls.items())[: _MAX_CACHED_CALLS - 1]
        self._cached_calls[function] = {key: cached, **dict(latest)}
        return cached

    def _buckets_for(
        self, optimizer: OptimizerWithContext, batches: list[Batch], key: Any = None
    ) -> StepBuckets:
        """Return kept buckets under this key if some fit, else new ones; new ones for a capture."""
        if _is_capturing(batches):
            captured = StepBuckets(optimizer, batches, is_captured=True)
            self._captured_buckets.setdefault(optimizer, []).append(captured)
            return captured
        by_key = self._kept.setdefault(optimizer, {})
        kept_buckets = by_key.get(key) or KeptBuckets()
        step_buckets = kept_buckets.find(lambda each: each.fits(batches))
        if step_buckets is None:
            step_buckets = self._new_buckets(optimizer, batches)
            kept_buckets.add(step_buckets)
            group_ids = set(map(id, optimizer.param_groups))
            live = {k: kept for k, kept in by_key.items() if k is None or k[0] in group_ids}
            self._kept[optimizer] = {**live, key: kept_buckets}
        return step_buckets

    def _new_buckets(self, lowered: HasLowerings, batches: list[Batch]) -> StepBuckets:
        """Make buckets whose kernels are compiled.

        Raises:
            Refusal: Triton cannot compile a kernel; a warning has said so.
            torch.OutOfMemoryError: The tables do not fit on the device.
        """
        try:
            step_buckets = StepBuckets(lowered, batches)
            step_buckets.compile(lowered, batches)
            return step_buckets
        except Refusal as refusal:
            device = batches[0].params[0].device
            self._why_refused[lowered.lowerings] = str(refusal).partition("\n")[0]
            warnings.warn(
                f"optimizer steps on {device} will be slow, by foreach or the for-loop: {refusal}",
                stacklevel=2,
            )
            raise
        except torch.OutOfMemoryError as error:
            error.add_note(
                f"{lowered.rule.name} needs memory for tables of its tensors' addresses. Nothing "
                "has been updated: free memory on the device, and take the step again."
            )
            raise


def _why_not_shards(lowered: HasLowerings, batch: Batch) -> str:
    """Return a short reason why Triton cannot take a batch of shards; "" if it can."""
    key = batch.dispatch_key
    if lowered.rule.wide or lowered.rule.group_states:
        return "reductions over parameters need whole parameters"
    if key.sparse_grad or key.occurrence:
        return "sparse gradients, and parameters that are listed twice, need whole parameters"
    return why_not_shards(workspaces(lowered)[key.facts])


def device_obstacle(device: torch.device) -> str:
    """Return a short reason why this lowering cannot run on a device; "" if it can."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if device.type == "cuda":
        return ""
    if device.type == "cpu":
        if os.environ.get("TRITON_INTERPRET") != "1":
            return "CPU tensors need TRITON_INTERPRET=1 set from the start"
        return "" if find_spec("numpy") else "Triton's interpreter needs numpy, not installed here"
    return f"there is no Triton lowering for {device.type} tensors"


def _update_if_it_fits(step_buckets: StepBuckets, function: HasLowerings, batch: Batch) -> bool:
    """Update a batch of a function through buckets if they fit; return whether they fit.

    The batch that the buckets were made for takes over the tensors of `batch` meanwhile.
    """
    (own_batch,) = step_buckets.batches
    own_batch.take_tensors(batch)
    try:
        fits = len(own_batch.dispatch_keys) == len(batch.dispatch_keys) and step_buckets.fits(
            [own_batch]
        )
        if fits:
            step_buckets.update(function, [own_batch])
        return fits
    finally:
        own_batch.drop_tensors()


def _is_capturing(batches: list[Batch]) -> bool:
    on_cuda = any(batch.params[0].is_cuda for batch in batches)
    return on_cuda and torch.cuda.is_current_stream_capturing()


def backend(lowering: str) -> FusedTritonBackend:
    """Return the backend."""
    return FusedTritonBackend()
