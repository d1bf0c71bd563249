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

from optgen.runtime.batch.batch import Batch, codes_obstacle
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
from optgen.runtime.fused_triton.sort_into_buckets import KeptPlans, LaunchPlan, workspaces
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
        # For each optimizer, the plans for all batches, under the key None; the plans for each
        # batch if the rule reduces over parameters.
        self._plans: WeakKeyDictionary[Any, dict[Any, KeptPlans]] = WeakKeyDictionary()
        # A graph reads its tables for as long as it is replayed.
        self._captured_plans: WeakKeyDictionary[Any, list[LaunchPlan]] = WeakKeyDictionary()
        # The last plans of a function; the batch of each is empty between calls.
        self._function_plans: WeakKeyDictionary[Any, KeptPlans] = WeakKeyDictionary()
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
        """Find or make the launch plans; return a function that launches their kernels.

        A new plan checks the shapes and devices of its tensors. Touched rows are gathered here, and
        the states are saved for a rollback.
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
        plans = [(self._new_plan(optimizer, row_batches), row_batches)] if row_batches else []
        if dense_batches:
            plans.append((self._plan(optimizer, dense_batches), dense_batches))

        sharded_plans = [
            (self._plan(optimizer, each, (each[0].group_id, sharding)), each)
            for sharding, each in shards.items()
        ]

        def update() -> CachedStep | None:
            for plan, plan_batches in sharded_plans:
                run(list(plan.sharded_updates(optimizer, plan_batches)))
                plan.finish(optimizer, plan_batches)
            for plan, plan_batches in plans:
                plan.update(optimizer, plan_batches)
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
        plan = self._plan(optimizer, [batch], (batch.group_id, batch.dispatch_key))
        return plan.wide_updates(batch)

    def begin(self, optimizer: OptimizerWithContext, choose: Callable[[Batch], str]) -> None:
        """Return None: this backend gathers batches in a first step as in any other."""

    def cached_step(
        self, optimizer: OptimizerWithContext, batches: Sequence[Batch]
    ) -> CachedStep | None:
        """Return the cached step that repeats an update of batches.

        Return None if the next step must gather its tensors.
        """
        kept_plans = self._plans.get(optimizer, {}).get(None)
        if kept_plans is None or capturing():
            return None
        plan = kept_plans.find(lambda each: each.is_for(batches))
        if plan is None or plan.marks_fresh:
            return None
        cached = self._cached_steps.get(optimizer)
        if cached is None or not cached.is_for(optimizer):
            cached = CachedLaunches.of(optimizer, batches, plan)
        if cached is None:
            return None
        self._cached_steps[optimizer] = cached
        if not cached.is_worth_a_plan():
            return None
        cached.add(plan, batches, optimizer.param_groups, kept_plans)
        return cached

    def call(self, function: HasLowerings, batch: Batch) -> CachedCalls | None:
        """Update the lists of a function through a plan that fits; return a cached call or None.

        Plans keep no tensor alive.
        """
        if capturing():
            captured = LaunchPlan(function, [batch], is_captured=True)
            self._captured_plans.setdefault(function, []).append(captured)
            captured.update(function, [batch])
            return None
        with self._call_lock:
            kept_plans = self._function_plans.setdefault(function, KeptPlans())
            plan = kept_plans.find(lambda each: _update_if_it_fits(each, function, batch))
            if plan is None:
                plan = self._new_plan(function, [batch])
                plan.update(function, [batch])
                cached = self._cached_call(function, batch, plan)
                batch.drop_tensors()
                kept_plans.add(plan)
                return cached
            return self._cached_call(function, batch, plan)

    def _cached_call(
        self, function: HasLowerings, batch: Batch, plan: LaunchPlan
    ) -> CachedCalls | None:
        """Return the cached call for lists of this length, with a plan that has updated them.

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
        if cached is None or not cached.add(plan, batch):
            return None
        latest = list(calls.items())[: _MAX_CACHED_CALLS - 1]
        self._cached_calls[function] = {key: cached, **dict(latest)}
        return cached

    def _plan(
        self, optimizer: OptimizerWithContext, batches: list[Batch], key: Any = None
    ) -> LaunchPlan:
        """Return a plan under this key if one fits, else a new one; a new one for a capture."""
        if _is_capturing(batches):
            captured = LaunchPlan(optimizer, batches, is_captured=True)
            self._captured_plans.setdefault(optimizer, []).append(captured)
            return captured
        plans = self._plans.setdefault(optimizer, {})
        kept_plans = plans.get(key) or KeptPlans()
        plan = kept_plans.find(lambda each: each.fits(batches))
        if plan is None:
            plan = self._new_plan(optimizer, batches)
            kept_plans.add(plan)
            group_ids = set(map(id, optimizer.param_groups))
            live = {k: kept for k, kept in plans.items() if k is None or k[0] in group_ids}
            self._plans[optimizer] = {**live, key: kept_plans}
        return plan

    def _new_plan(self, lowered: HasLowerings, batches: list[Batch]) -> LaunchPlan:
        """Make a plan whose kernels are compiled.

        Raises:
            Refusal: Triton cannot compile a kernel; a warning has said so.
            torch.OutOfMemoryError: The tables do not fit on the device.
        """
        try:
            plan = LaunchPlan(lowered, batches)
            plan.compile(lowered, batches)
            return plan
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


def _update_if_it_fits(plan: LaunchPlan, function: HasLowerings, batch: Batch) -> bool:
    """Update a batch of a function through a plan if the plan fits; return whether it fits.

    The batch that the plan was made for takes over the tensors of `batch` meanwhile.
    """
    (plan_batch,) = plan.batches
    plan_batch.take_tensors(batch)
    try:
        fits = len(plan_batch.dispatch_keys) == len(batch.dispatch_keys) and plan.fits([plan_batch])
        if fits:
            plan.update(function, [plan_batch])
        return fits
    finally:
        plan_batch.drop_tensors()


def _is_capturing(batches: list[Batch]) -> bool:
    on_cuda = any(batch.params[0].is_cuda for batch in batches)
    return on_cuda and torch.cuda.is_current_stream_capturing()


def backend(lowering: str) -> FusedTritonBackend:
    """Return the backend."""
    return FusedTritonBackend()
