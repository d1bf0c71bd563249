"""List the sharding specs of a step's tensors: the C++ reader refuses tensors with other specs."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from torch import Tensor

from optgen.runtime.protocols import OptimizerLike
from optgen.runtime.tensors.dtensor import is_dtensor, same_sharding
from optgen.runtime.torch_private import dtensor_spec


def first_dtensor(groups: list[dict[str, Any]]) -> Tensor | None:
    """Return the first parameter that is a DTensor; None if there is none."""
    params = list(chain.from_iterable(group["params"] for group in groups))
    classes = set(filter(is_dtensor, set(map(type, params))))
    return next((param for param in params if type(param) in classes), None) if classes else None


def specs_of(optimizer: OptimizerLike, keys: Sequence[str]) -> list[list[Any]]:
    """Return the sharding specs of a step's tensors, by stream and parameter; None if not sharded.

    The streams are the parameters, the gradients, and the states of `keys[2:]`.
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]
    columns: list[list[Any]] = [params, [param.grad for param in params]]
    for key in keys[2:]:
        columns.append([optimizer.state.get(param, {}).get(key) for param in params])
    return [
        [_spec(param, value) for param, value in zip(params, column, strict=True)]
        for column in columns
    ]


def _spec(param: Tensor, value: Any) -> Any:
    """Return the spec of a state or gradient if it is sharded as its parameter is; else None."""
    return dtensor_spec(value) if is_dtensor(type(value)) and same_sharding(param, value) else None
