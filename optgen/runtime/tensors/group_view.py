"""The view of a param group: the shape in which a rule sees each parameter of the group.

If a rule looks at whole parameters, the shape of a parameter says what its matrices, rows and
columns are.
The group option `view` makes the rule see another shape with as many elements, for example
`(3, heads, -1, width)`. Parameters and states keep their shapes; lowerings compute with views.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from optgen.runtime.rule import Rule

View: TypeAlias = tuple[int, ...]

MAX_AXES = 32  # the same limit as in tensor_request.h
_MAX_ELEMENTS = 2**63 - 1  # torch counts elements in 64 bits
_short = reprlib.Repr()
_short.maxtuple = MAX_AXES


def check_form(view: Any) -> None:
    """Raise a ValueError unless a view is a tuple of sizes, at most one of them -1."""
    is_tuple_of_ints = isinstance(view, tuple) and all(type(size) is int for size in view)
    if not is_tuple_of_ints or min(view, default=0) < -1 or view.count(-1) > 1:
        raise ValueError(
            "view must be a tuple of ints, at most one of them -1, such as (3, 12, -1, 768); "
            f"it is {_short.repr(view)}"
        )
    if len(view) > MAX_AXES:
        raise ValueError(f"view has {len(view)} axes, and may have {MAX_AXES}")


def sizes_in_view(view: View, shape: Sequence[int]) -> View:
    """Return the sizes of a view of this shape, without -1.

    Raises:
        ValueError: The view has another number of elements.
    """
    elements = prod(shape)
    known_elements = prod(size for size in view if size >= 0)  # the product without -1
    reason = ""
    if prod(max(size, 1) for size in view) > _MAX_ELEMENTS:
        reason = "its sizes are too large"
    elif -1 in view and not known_elements:
        reason = "with a size of 0, -1 could be any size"
    elif -1 in view and elements % known_elements:
        reason = f"{elements} elements are no multiple of {known_elements}"
    elif -1 not in view and elements != known_elements:
        reason = f"{elements} elements are not {known_elements}"
    if reason:
        raise ValueError(
            f"view={_short.repr(view)} does not fit a parameter of shape {tuple(shape)}: {reason}"
        )
    return tuple(elements // known_elements if size == -1 else size for size in view)


def in_view(view: View, params: list[Tensor]) -> list[Tensor]:
    """Return a meta tensor for each whole parameter, in the shape of a view."""
    check_form(view)
    by_shape_and_dtype: dict[tuple[torch.Size, torch.dtype], Tensor] = {}
    views = []
    for param in params:
        key = param.shape, param.dtype
        if key not in by_shape_and_dtype:
            sizes = sizes_in_view(view, param.shape)
            by_shape_and_dtype[key] = torch.empty(sizes, dtype=param.dtype, device="meta")
        views.append(by_shape_and_dtype[key])
    return views


def seen_params(rule: Rule, group: Mapping[str, Any], params: list[Tensor]) -> list[Tensor]:
    """Return whole parameters in the shapes that a rule sees; with a view, as meta tensors."""
    view = rule.view(group)
    return params if view is None else in_view(view, params)
