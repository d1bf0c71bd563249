"""The backends, which take batches through lowerings, and the choice of one for each batch.

Each backend is a class in a folder of its own. `dispatch` knows backends only by the protocol.
"""

import importlib
from collections.abc import Callable, Iterable, Sequence, Set
from functools import cache
from typing import Any, Protocol, TypeAlias, cast

import torch
from torch import Tensor

from optgen.runtime.backend_table import BACKENDS, FUSED, current_forced_lowering
from optgen.runtime.batch.batch import (
    OPTIONS,
    Batch,
    codes_in_other_order,
    dtype_or_class,
    why_forloop_only,
)
from optgen.runtime.batch.context import CachedStep, OptimizerWithContext
from optgen.runtime.rule import HasLowerings, Rule
from optgen.runtime.sharded.consensus import Consensus
from optgen.runtime.sharded.driver import Update
from optgen.runtime.torch_private import foreach_devices

PreparedUpdate: TypeAlias = Callable[[], CachedStep | None]
"""A function that updates batches; it returns a cached step for the next step, or None."""


class CachedCall(Protocol):
    """A call of an elementwise function that a backend can repeat with other lists."""

    def run(self, lists: Sequence[list[Tensor]], hypers: dict[str, Any]) -> bool:
        """Update the lists, or change nothing and return False."""


class Backend(Protocol):
    """An object that takes batches through one lowering.

    * `zeroes_gradients`: whether its updates write zeros into dense gradients, for a rule with
      `zero_grad`. Otherwise `dispatch` writes the zeros after the updates.
    """

    zeroes_gradients: bool

    def obstacle(self, lowered: HasLowerings, batch: Batch) -> str:
        """Return a short reason why this backend cannot take a batch; "" if it can."""

    def function_obstacle(
        self, function: HasLowerings, device: torch.device, dtypes: Set[torch.dtype]
    ) -> str:
        """Return a short reason why it cannot run a function over lists; "" if it can.

        Args:
            function: A generated function.
            device: The device of its tensors.
            dtypes: The dtypes of its tensors.
        """

    def prepare(
        self, optimizer: OptimizerWithContext, batches: Sequence[Batch], consensus: Consensus | None
    ) -> PreparedUpdate:
        """Check batches, and raise before anything is written; return their update.

        Record the collectives of the update in `consensus`; it is None if the step can have none.
        """

    def wide_updates(
        self, optimizer: OptimizerWithContext, batch: Batch, consensus: Consensus | None
    ) -> Iterable[Update]:
        """Check a batch of a rule that reduces over several parameters; return its updates.

        The caller unscales the gradients before it runs the first update.
        """

    def begin(
        self, optimizer: OptimizerWithContext, can_take: Callable[[Batch], bool]
    ) -> CachedStep | None:
        """Take a first step without gathering batches, if possible.

        Args:
            optimizer: An optimizer that has no batches yet.
            can_take: Tells whether a batch would be dispatched to this backend.

        Returns:
            The cached step; None if no step was taken.
        """

    def cached_step(
        self, optimizer: OptimizerWithContext, batches: Sequence[Batch]
    ) -> CachedStep | None:
        """Return a cached step for the next step, after this backend has updated all batches.

        Return None if the next step must gather its tensors.
        """

    def call(self, function: HasLowerings, batch: Batch) -> CachedCall | None:
        """Run an elementwise function on a batch; return a cached call.

        Return None if the next call must gather its tensors.
        """


@cache
def backend(lowering: str) -> Backend:
    """Return the backend of a lowering; import it on first use."""
    instance: Backend = importlib.import_module(BACKENDS[lowering].module).backend(lowering)
    return instance


def backend_of(rule: Rule, lowering: str) -> Backend:
    """Return the backend that takes a rule through a lowering.

    A rule on whole matrices has no fused step. In a fused lowering, its step is eager code, which
    calls a compiled function for each elementwise part.
    """
    is_outlined = rule.why_uncut and BACKENDS[lowering].device
    return _outlined_step(lowering) if is_outlined else backend(lowering)


@cache
def _outlined_step(lowering: str) -> Backend:
    """Return the backend of rules on whole matrices, whose functions this lowering runs."""
    module = importlib.import_module("optgen.runtime.eager.backend")
    instance: Backend = module.OutlinedStep(backend(lowering).function_obstacle)
    return instance


_SMALL_ELEMENTS = 2**14
"""Below this mean number of elements, foreach is the faster of the two on the CPU too."""


def choose(optimizer: HasLowerings, batch: Batch) -> tuple[str, str]:
    """Return the lowering for a batch, and a short reason.

    The pair is cached. It is chosen anew after an option has changed, or the answer of
    `codes_in_other_order`.
    """
    group, rule = batch.group, optimizer.rule
    options = current_forced_lowering(), *map(group.get, OPTIONS), dtype_or_class(group.get("lr"))
    key = (*options, codes_in_other_order(rule, batch))
    cached = batch.memo.get("choice")
    if cached is None or cached[0] != key:
        cached = batch.memo["choice"] = (
            key,
            _foreach_for_shards(batch, *_choose(optimizer, batch)),
        )
    return cast(tuple[str, str], cached[1])


def _foreach_for_shards(batch: Batch, lowering: str, reason: str) -> tuple[str, str]:
    """Replace the for-loop by foreach for shards: of the two, only foreach has a sharded form."""
    if batch.dispatch_key.sharding is None or BACKENDS[lowering].device:
        return lowering, reason
    return "foreach", f"{reason}; in lists"


def _choose(optimizer: HasLowerings, batch: Batch) -> tuple[str, str]:
    """Return the lowering for a batch, and a short reason, as if no parameter were sharded."""
    group, rule, forced_lowering = batch.group, optimizer.rule, current_forced_lowering()
    if forced_lowering is not None:
        if reason := why_not(optimizer, batch, forced_lowering):
            name = type(optimizer).__name__
            raise RuntimeError(f"{name} cannot take a step through {forced_lowering!r}: {reason}")
        return forced_lowering, "asked for by use_lowering"
    if reason := why_forloop_only(batch):
        return "forloop", reason
    if group.get("fused"):
        return _choose_fused(optimizer, batch)
    if group.get("foreach"):
        return "foreach", "foreach=True"
    if group.get("foreach") is not None:
        return "forloop", "foreach=False"
    if group.get("capturable"):
        return _choose_capturable(optimizer, batch)
    if group.get("fused") is not None:
        return _best_unfused(rule, batch, "fused=False")
    if "lr" in rule.tensor_hypers and _lr_is_less_precise(batch):
        return _best_unfused(rule, batch, "lr is a tensor of lower precision than the parameters")
    device = batch.dispatch_key.device
    if device not in FUSED:
        return _best_unfused(rule, batch, f"no fused lowering for {device} tensors")
    if reason := why_not(optimizer, batch, FUSED[device]):
        return _best_unfused(rule, batch, reason)
    if batch.dispatch_key.sparse_grad and device != "cpu":
        # For a few rows, Triton would upload a new table of addresses in every step.
        return _best_unfused(rule, batch, "sparse gradients")
    return FUSED[device], _describe(batch)


def why_not(lowered: HasLowerings, batch: Batch, lowering: str) -> str:
    """Return a short reason why a lowering cannot take this batch; "" if it can."""
    if lowering == "forloop":
        return ""
    if reason := why_forloop_only(batch):
        return f"only the for-loop can: {reason}"
    return backend_of(lowered.rule, lowering).obstacle(lowered, batch)


def _choose_fused(optimizer: HasLowerings, batch: Batch) -> tuple[str, str]:
    """Return the fused lowering that `fused=True` asks for; raise if it cannot take the batch."""
    device = batch.dispatch_key.device
    lowering = FUSED.get(device)
    reason = why_not(optimizer, batch, lowering) if lowering else f"no kernel for {device} tensors"
    if reason and batch.dispatch_key.sparse_grad:
        raise RuntimeError(f"`_fused_{optimizer.rule.name}` does not support sparse gradients")
    if lowering is None or reason:
        raise RuntimeError(f"{type(optimizer).__name__}(fused=True) cannot take a step: {reason}")
    return lowering, f"fused=True, {_describe(batch)}"


def _choose_capturable(optimizer: HasLowerings, batch: Batch) -> tuple[str, str]:
    """Return the fused lowering if a graph can capture it, and all numbers stay on the device.

    A step count that is a Python int, and a state of a whole group, are stored by the host.
    """
    group, rule, key = batch.group, optimizer.rule, batch.dispatch_key
    lowering = FUSED.get(key.device)
    may_fuse = group.get("fused") is None and not key.sparse_grad
    host_stores = rule.step == "int" or rule.wide or bool(rule.group_states)
    if lowering and BACKENDS[lowering].can_be_captured and may_fuse and not host_stores:
        computes_in_lr_dtype = "lr" in rule.tensor_hypers and _lr_is_less_precise(batch)
        if not computes_in_lr_dtype and not why_not(optimizer, batch, lowering):
            return lowering, f"capturable, {_describe(batch)}"
    return "foreach", "capturable"


def _best_unfused(rule: Rule, batch: Batch, reason: str) -> tuple[str, str]:
    """Return for-loop or foreach, whichever is faster for a batch, and the reason."""
    if isinstance(batch.group.get("lr"), Tensor) and "lr" in rule.tensor_hypers:
        return "forloop", reason  # the for-loop computes in the dtype of lr, as torch does
    element_count = sum(param.numel() for param in batch.params)
    are_small = element_count < len(batch.params) * _SMALL_ELEMENTS
    are_small_and_many = are_small and len(batch.params) > 1
    prefers_foreach = batch.dispatch_key.device in foreach_devices() or are_small_and_many
    return "foreach" if prefers_foreach else "forloop", reason


def _lr_is_less_precise(batch: Batch) -> bool:
    """Tell whether torch's for-loop computes the step size less precisely than the parameters.

    If the learning rate is a tensor, torch computes the step size in the dtype of this tensor.
    """
    lr = batch.group.get("lr")
    return isinstance(lr, Tensor) and any(
        torch.promote_types(lr.dtype, param.dtype) != lr.dtype for param in batch.params
    )


def _describe(batch: Batch) -> str:
    """Name the device and the dtypes of a batch."""
    dtypes = sorted({str(param.dtype).removeprefix("torch.") for param in batch.params})
    device = batch.dispatch_key.device
    device_name = {"cpu": "CPU", "cuda": "CUDA"}.get(device, device)
    return f"{device_name} tensors, {' and '.join(dtypes)}"
