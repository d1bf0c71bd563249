"""Make step counts and scalar states: 0-dim tensors. Some rules store counts as Python ints."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.rule import Rule
from optgen.runtime.torch_private import foreach_clone, scalar_dtype

_device = attrgetter("device")


def as_scalar(
    value: float,
    rule: Rule,
    group: Mapping[str, Any],
    param: Tensor,
    dtype: torch.dtype | None = None,
    on_device: bool = False,
) -> Tensor:
    """Make a 0-dim tensor in this dtype, or in the dtype that torch's scalars have.

    The tensor lives on the parameter's device if `on_device`, else on `scalar_device`.
    """
    dtype = dtype or scalar_dtype(bool(group.get("fused")))
    device = param.device if on_device else scalar_device(rule, group, param)
    return torch.full((), value, dtype=dtype, device=device)


def as_scalars(
    value: float,
    rule: Rule,
    group: Mapping[str, Any],
    params: list[Tensor],
    dtype: torch.dtype | None = None,
    on_device: bool = False,
) -> Sequence[Tensor]:
    """Make a scalar, as `as_scalar` does, for each of several parameters."""
    on_param_device = on_device or scalars_on_param_device(rule, group)
    if not params or (on_param_device and len(set(map(_device, params))) > 1):
        return [as_scalar(value, rule, group, param, dtype, on_device) for param in params]
    return foreach_clone([as_scalar(value, rule, group, params[0], dtype, on_device)] * len(params))


def scalar_device(rule: Rule, group: Mapping[str, Any], param: Tensor) -> torch.device | str:
    """Return the device of this parameter's step count and scalar states."""
    return param.device if scalars_on_param_device(rule, group) else "cpu"


def scalars_on_param_device(rule: Rule, group: Mapping[str, Any]) -> bool:
    """Tell whether scalars live on their parameter's device: by the rule, or by group options.

    The device itself reads the scalars of a capturable group, and of a fused one, unless the rule
    is on whole matrices: the host then reads them between the kernels.
    """
    by_rule = rule.scalar_device == "param"
    by_kernels = group.get("fused") and not rule.why_uncut
    return by_rule or bool(by_kernels or group.get("capturable"))


def counts_as_tensors(dicts: list[dict[str, Any]]) -> list[Tensor]:
    """Convert step counts from Python ints to float64 CPU tensors, exact up to 2**53.

    Parameters that share one dict of states share one tensor.
    """
    counts = {id(values): values["step"] for values in dicts}
    tensors = {
        key: torch.tensor(count, dtype=torch.float64, device="cpu") for key, count in counts.items()
    }
    return [tensors[id(values)] for values in dicts]


def store_int_counts(dicts: list[dict[str, Any]], steps: list[Tensor]) -> None:
    """Store step counts, given as tensors, as Python ints in the states."""
    for values, step in zip(dicts, steps, strict=True):
        values["step"] = int(step)
