"""Choose the lowering of each batch of a step, and say why; `use_lowering` forces a choice."""

from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from optgen.runtime.backends import BACKENDS, FUSED, backend_of
from optgen.runtime.batch.batch import (
    OPTIONS,
    Batch,
    codes_in_other_order,
    dtype_or_class,
    why_forloop_only,
)
from optgen.runtime.batch.step_context import FORCED_LOWERING, current_forced_lowering
from optgen.runtime.rule import HasLowerings, Rule
from optgen.runtime.torch_private import foreach_devices

F = TypeVar("F", bound=Callable[..., Any])

_SMALL_ELEMENTS = 2**14
"""Below this mean number of elements, foreach is the faster of the two on the CPU too."""


def choose(optimizer: HasLowerings, batch: Batch) -> tuple[str, str]:
    """Choose the lowering for a batch, and build its kernel; return it, and a short reason.

    A kernel that cannot be built is not chosen. The pair is cached. It is chosen anew after an
    option has changed, or the answer of `codes_in_other_order`.
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
        if reason := build_or_reason(optimizer, batch, forced_lowering):
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
    if reason := build_or_reason(optimizer, batch, FUSED[device]):
        return _best_unfused(rule, batch, reason)
    if batch.dispatch_key.sparse_grad and device != "cpu":
        # For a few rows, Triton would upload a new table of addresses in every step.
        return _best_unfused(rule, batch, "sparse gradients")
    return FUSED[device], _describe(batch)


def build_or_reason(lowered: HasLowerings, batch: Batch, lowering: str) -> str:
    """Build what a batch needs in a lowering; return why it cannot be taken, "" if it can."""
    if lowering == "forloop":
        return ""
    if reason := why_forloop_only(batch):
        return f"only the for-loop can: {reason}"
    return backend_of(lowered.rule, lowering).build_or_reason(lowered, batch)


def _choose_fused(optimizer: HasLowerings, batch: Batch) -> tuple[str, str]:
    """Return the fused lowering that `fused=True` asks for; raise if it cannot take the batch."""
    device = batch.dispatch_key.device
    lowering = FUSED.get(device)
    reason = (
        build_or_reason(optimizer, batch, lowering)
        if lowering
        else f"no kernel for {device} tensors"
    )
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
        if not computes_in_lr_dtype and not build_or_reason(optimizer, batch, lowering):
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


class use_lowering(ContextDecorator):
    """Take every following step through one lowering; a step raises if the lowering cannot take it.

    As a plain statement, a call holds until the next call; after `use_lowering(None)` the runtime
    chooses again. In a `with` statement, a call holds in the block; as a decorator, during calls of
    the function. Each thread chooses for itself.

    Args:
        name: "forloop", "foreach", "fused_cpu" or "fused_triton"; for CPU tensors, "fused_triton"
            runs Triton's interpreter. None forces no lowering.
    """

    def __init__(self, name: str | None) -> None:
        if name is not None and name not in BACKENDS:
            raise ValueError(f"unknown lowering {name!r}; there are {', '.join(BACKENDS)}")
        self._name, self._previous_name = name, FORCED_LOWERING.get()
        FORCED_LOWERING.set(name)

    def __enter__(self) -> None:
        FORCED_LOWERING.set(self._name)

    def __exit__(self, *raised: object) -> None:
        FORCED_LOWERING.set(self._previous_name)

    def __call__(self, function: F) -> F:
        """Decorate a function: the lowering holds during its calls only."""
        FORCED_LOWERING.set(self._previous_name)
        return super().__call__(function)

    def _recreate_cm(self) -> "use_lowering":
        return use_lowering(self._name)
