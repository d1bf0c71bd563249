"""Compute values of states for the evaluator: initial values, and values as they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optgen.contract.states import AT_LEAST_FLOAT32, QUANTIZED, RANK
from optgen.ir.algorithm import Algorithm, State
from optgen.ir.binding_times import declared_kinds
from optgen.ir.matrix_axes import Axes, height, width
from optgen.ir.quantization import quantized

Values = dict[str, Any]


def as_scalar_tensor(value: Any) -> Any:
    """Convert numbers and bools, also those in a tuple, to 0-dim tensors; keep None and strings."""
    if isinstance(value, tuple | list):
        return tuple(as_scalar_tensor(v) for v in value)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return torch.tensor(value)
    return torch.as_tensor(value, dtype=torch.float64).detach().squeeze()


def exists(state: State, condition_values: Mapping[str, Any]) -> bool:
    """Tell whether a state exists, given the values of hyperparameters and shape predicates."""
    if state.when is None:
        return True
    holds = bool(condition_values[state.when.removeprefix("not ")])
    return not holds if state.when.startswith("not ") else holds


def initial_value(
    algorithm: Algorithm, state: State, values: Values, scalar_dtype: torch.dtype, index: int
) -> Tensor:
    """Return the value of a state before a parameter's first step."""
    if state.init == "index":
        return torch.tensor(float(index), dtype=dtype_of(state, scalar_dtype))
    name = algorithm.param if state.init == "p" else state.init
    initial: Tensor = values[name] if isinstance(name, str) else as_scalar_tensor(name)
    if state.shape == "scalar":
        return initial.to(dtype_of(state, scalar_dtype))
    axes = declared_kinds(algorithm)[state.symbol].axes
    shape = shape_of(axes, values[algorithm.param], values.get(RANK))
    return stored_value(
        state, torch.zeros(shape, dtype=torch.float64, device=initial.device) + initial
    )


def dtype_of(scalar: State, default: torch.dtype) -> torch.dtype:
    """Return the dtype that a scalar state declares, or the default if it declares none."""
    dtype: torch.dtype = getattr(torch, scalar.dtype) if scalar.dtype else default
    return dtype


def stored_value(state: State, value: Tensor, storage_dtype: torch.dtype | None = None) -> Tensor:
    """Return the value of a state as the optimizer keeps it.

    The value is rounded to the dtype that the state declares. If it declares none, the value is
    rounded to `storage_dtype`, the parameter's, unless this is None or the state is "scalar".
    """
    if state.dtype == QUANTIZED:
        return quantized(value, state.block, state.map, state.min_elements)
    if state.dtype == AT_LEAST_FLOAT32 and storage_dtype is not None:
        storage_dtype = torch.promote_types(storage_dtype, torch.float32)
    elif state.dtype and state.dtype != AT_LEAST_FLOAT32:
        return value.to(getattr(torch, state.dtype))
    if storage_dtype is None or state.shape == "scalar":
        return value
    return value.to(storage_dtype).double()


def shape_of(axes: Axes, param: Tensor, rank: Any) -> torch.Size:
    """Return the shape of a value that varies along these axes of a parameter.

    `rank` is the value of the name `rank` in the rule. It is used only if an axis has this size.
    """
    if axes is Axes.NONE:
        return torch.Size()
    *batch, rows, cols = (1, 1, *param.shape)
    size_by_name = {"rows": rows, "cols": cols, "1": 1}
    names = height(axes), width(axes)
    if RANK in names:
        size_by_name[RANK] = min(int(rank), rows, cols)
    sizes = [*batch, *(size_by_name[name] for name in names)]
    return torch.Size(sizes[len(sizes) - param.ndim :])
