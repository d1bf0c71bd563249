"""The view of a param group: the shape in which a rule sees each parameter of the group.

If a rule looks at whole parameters, the shape of a parameter says what its matrices, rows and
columns are.
The group option `view` makes the rule see another shape with as many elements, for example
`(3, heads, -1, width)`. Parameters and states keep their shapes; lowerings compute with views.

A list of views cuts each parameter into pieces, which follow one another in row-major order. The
rule sees each piece as if it were a parameter: queries of 32 heads, then keys of 8.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from optgen.runtime.rule import Rule

View: TypeAlias = tuple[int, ...]
Pieces: TypeAlias = list[View]

MAX_AXES = 32  # the same limit as in tensor_request.h
_MAX_ELEMENTS = 2**63 - 1  # torch counts elements in 64 bits
_short = reprlib.Repr()
_short.maxtuple = MAX_AXES


def check_form(view: Any) -> None:
    """Raise a ValueError unless a view is a tuple of sizes, at most one -1, or a list of them."""
    pieces = view if isinstance(view, list) else [view]
    if not pieces or not all(map(_has_form, pieces)):
        raise ValueError(
            "view must be a tuple of ints, at most one of them -1, such as (3, 12, -1, 768), or a "
            "list of such tuples, one for each piece, such as [(32, 128, -1), (8, 128, -1)]; "
            f"it is {_short.repr(view)}"
        )
    for piece in pieces:
        if len(piece) > MAX_AXES:
            raise ValueError(f"view has {len(piece)} axes, and may have {MAX_AXES}")


def _has_form(view: Any) -> bool:
    """Tell whether a view is a tuple of sizes, at most one of them -1."""
    is_tuple_of_ints = isinstance(view, tuple) and all(type(size) is int for size in view)
    return is_tuple_of_ints and min(view, default=0) >= -1 and view.count(-1) <= 1


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


def sizes_in_pieces(pieces: Pieces, shape: Sequence[int]) -> tuple[View, ...]:
    """Return the sizes of the pieces of this shape, without -1, which is one size in all pieces.

    Raises:
        ValueError: The pieces have another number of elements together.
    """
    elements = prod(shape)
    known = [prod(size for size in piece if size >= 0) for piece in pieces]
    fixed = sum(n for n, piece in zip(known, pieces, strict=True) if -1 not in piece)
    per_unit = sum(n for n, piece in zip(known, pieces, strict=True) if -1 in piece)
    is_open = any(-1 in piece for piece in pieces)
    reason = ""
    if fixed + max(per_unit, 1) > _MAX_ELEMENTS:
        reason = "its sizes are too large"
    elif not is_open and fixed != elements:
        reason = f"the pieces have {fixed} elements together, and the parameter {elements}"
    elif is_open and not per_unit:
        reason = "with a size of 0, -1 could be any size"
    elif is_open and (elements < fixed or (elements - fixed) % per_unit):
        reason = (
            f"-1 is one size in all pieces, and {elements - fixed} elements are no multiple of "
            f"the {per_unit} that these pieces have for each 1 of it"
        )
    if reason:
        raise ValueError(
            f"view={_short.repr(pieces)} does not fit a parameter of shape {tuple(shape)}: {reason}"
        )
    open_size = (elements - fixed) // per_unit if is_open else 0
    return tuple(tuple(open_size if size == -1 else size for size in piece) for piece in pieces)


def in_pieces(pieces: Pieces, param: Tensor) -> list[Tensor]:
    """Return a meta tensor for each piece of a whole parameter."""
    return list(_metas_of_pieces(tuple(pieces), param.shape, param.dtype))


@lru_cache(maxsize=256)
def _metas_of_pieces(
    pieces: tuple[View, ...], shape: torch.Size, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    sizes = sizes_in_pieces(list(pieces), shape)
    return tuple(torch.empty(each, dtype=dtype, device="meta") for each in sizes)


def each_seen(view: View | Pieces, param: Tensor) -> list[Tensor]:
    """Return what a rule sees of a parameter: a meta tensor, or one for each piece.

    Raises:
        ValueError: The view is malformed, or does not fit the parameter.
    """
    check_form(view)
    return in_pieces(view, param) if isinstance(view, list) else in_view(view, [param])


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
