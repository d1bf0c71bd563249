"""Raise errors, mostly torch's, about graph capture and about differentiating through a step."""

import torch

from optgen.runtime.batch.batch import Batch
from optgen.runtime.protocols import OptimizerLike
from optgen.runtime.rule import Rule
from optgen.runtime.torch_private import capturable_devices


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
        for param_states, value in zip(batch.dicts, column, strict=False)
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
