"""Update batches by torch's operations, through the for-loop and foreach lowerings, per bucket.

A rule on whole matrices has a third such lowering, `outlined`: eager code on every device, which
calls torch's matrix words, and a function for each sweep between them. A fused backend runs the
functions.
"""

import importlib
from collections.abc import Callable, Iterable, Sequence, Set
from typing import TypeAlias, cast

import torch

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.grad_scaler import is_skipped, unscale
from optgen.runtime.batch.step_context import OptimizerWithContext
from optgen.runtime.eager import sharded_step
from optgen.runtime.eager.call import Call, buckets, load_function
from optgen.runtime.eager.sharded_step import wide_updates
from optgen.runtime.eager.working_copies import function_lists_in_one_dtype
from optgen.runtime.rule import HasLowerings, number
from optgen.runtime.sharded.consensus import Consensus
from optgen.runtime.sharded.driver import Update


class EagerBackend:
    """Backend that calls generated functions over tensors or lists of tensors."""

    zeroes_gradients = False

    def __init__(self, lowering: str) -> None:
        self._lowering = lowering

    def build_or_reason(self, lowered: HasLowerings, batch: Batch) -> str:
        """Return "": torch's operations can take every batch."""
        return ""

    def build_function_or_reason(
        self, function: HasLowerings, device: torch.device, dtypes: Set[torch.dtype]
    ) -> str:
        """Return "": torch's operations can run every function."""
        return ""

    def prepare(
        self, optimizer: OptimizerWithContext, batches: Sequence[Batch], consensus: Consensus | None
    ) -> Callable[[], None]:
        """Check batches; return a function that updates them.

        The sharded batches are updated together, after all other batches.
        """
        unsharded = [batch for batch in batches if batch.dispatch_key.sharding is None]
        calls = [Call.of(optimizer, batch, self._lowering) for batch in unsharded]
        sharded = [batch for batch in batches if batch.dispatch_key.sharding is not None]
        update_sharded = sharded_step.prepare(optimizer, sharded, consensus) if consensus else None

        def update() -> None:
            if is_skipped(optimizer):
                return
            for call in calls:
                unscale(optimizer, call.batch)
                call.update(optimizer.rule)
            if update_sharded:
                update_sharded()

        return update

    def wide_updates(
        self, optimizer: OptimizerWithContext, batch: Batch, consensus: Consensus | None
    ) -> Iterable[Update]:
        """Return the updates of a batch of a rule that reduces over several parameters."""
        return wide_updates(optimizer, batch, self._lowering, consensus)

    def begin(self, optimizer: OptimizerWithContext, choose: Callable[[Batch], str]) -> None:
        """Return None: this backend gathers batches in a first step as in any other."""

    def cached_step(self, optimizer: OptimizerWithContext, batches: Sequence[Batch]) -> None:
        """Return None: every step gathers its tensors."""

    def call(self, function: HasLowerings, batch: Batch) -> None:
        """Update the lists of an elementwise function."""
        rule = function.rule
        update = load_function(function.lowerings, self._lowering, "update")
        hypers = {key: number(batch.group[key]) for key in rule.hypers}
        for columns, _, _ in buckets(rule, batch, equal_scalars=True):
            lists = function_lists_in_one_dtype(rule, columns)
            update(*lists.columns, **hypers)
            lists.write_back()


def backend(lowering: str) -> EagerBackend:
    """Return the backend that runs a generated module, "forloop" or "foreach"."""
    return EagerBackend(lowering)


FunctionObstacle: TypeAlias = Callable[[HasLowerings, torch.device, Set[torch.dtype]], str]
"""The method of that name of a backend."""


class OutlinedStep(EagerBackend):
    """Backend of rules on whole matrices, whose sweeps are run by a fused backend.

    Args:
        build_function_or_reason: The method of the fused backend.
    """

    def __init__(self, build_function_or_reason: FunctionObstacle) -> None:
        super().__init__("outlined")
        self._build_function_or_reason = build_function_or_reason

    def build_or_reason(self, lowered: HasLowerings, batch: Batch) -> str:
        """Return a short reason why the sweeps cannot take this batch; "" if they can."""
        rule = lowered.rule
        if not rule.sweeps:
            return rule.why_no_sweeps
        if batch.dispatch_key.sharding:  # owners of shards step with foreach
            return rule.why_uncut
        if class_name := batch.overriding_class:
            return f"a state of class {class_name}"
        if batch.group.get("capturable"):  # then the functional form keeps numbers on the device
            return "capturable=True, and the step reads its numbers on the host"
        device, dtypes = batch.params[0].device, _sweep_dtypes(batch)
        for name in rule.sweeps:
            module = importlib.import_module(f"{lowered.lowerings}.{name}")
            sweep = cast(HasLowerings, module._update)
            if reason := self._build_function_or_reason(sweep, device, dtypes):
                return reason
        return ""


def _sweep_dtypes(batch: Batch) -> set[torch.dtype]:
    """Return the dtypes of the tensors that sweeps get; the step copies 16 bits to float32."""
    are_double = {param.dtype == torch.float64 for param in batch.params}
    return {torch.float64 if is_double else torch.float32 for is_double in are_double}
