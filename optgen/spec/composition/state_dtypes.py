"""Declare the dtypes of an optimizer's states."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from optgen.ir.algorithm import NARROW
from optgen.spec.composition.names import CompositionError
from optgen.spec.composition.parts import Part, declared_key
from optgen.spec.errors import did_you_mean

_DTYPES = (None, "float32", *NARROW)


def with_state_dtypes(
    parts: Sequence[Part], default: str | None, by_key: Mapping[str, str | None]
) -> list[Part]:
    """Return an optimizer and its modifiers, with other dtypes of states.

    Args:
        parts: the optimizer first.
        default: the dtype of the optimizer's states that hold rows, columns or a number for each
            element, and that declare none; None for the parameter's.
        by_key: the dtypes of some states, also of modifiers, by their checkpoint keys.

    Raises:
        CompositionError: a dtype or a key is unknown, or a state has no dtype of its own.
    """
    for dtype in (default, *by_key.values()):
        if dtype not in _DTYPES:
            known = ", ".join(map(repr, _DTYPES))
            raise CompositionError(f"state_dtype: {dtype!r} is no dtype of a state; it is {known}")
    copies = [part.copy() for part in parts]
    states = {declared_key(state): state for part in copies for _, state in part.states}
    for key in by_key:
        if key not in states:
            hint = did_you_mean(key, states, f"there are {', '.join(states)}")
            raise CompositionError(f"state_dtype: no state is called `{key}`: {hint}")
        if not _holds_elements(states[key]):
            raise CompositionError(
                f"state_dtype: `{key}` is one number, or a square or thin matrix"
            )
    for _, state in copies[0].states:
        if _holds_elements(state) and _option(state, "dtype") is None:
            _declare(state, default)
    for key, dtype in by_key.items():
        _declare(states[key], dtype)
    return copies


def _holds_elements(state: ast.expr) -> bool:
    """Tell whether a state has the parameter's shape, or a number for each row or column."""
    shape = _option(state, "shape")
    return shape is None or ast.unparse(shape) in ("'like'", "'row'", "'col'")


def _option(state: ast.expr, name: str) -> ast.expr | None:
    assert isinstance(state, ast.Call)
    return next((each.value for each in state.keywords if each.arg == name), None)


def _declare(state: ast.expr, dtype: str | None) -> None:
    assert isinstance(state, ast.Call)
    state.keywords = [each for each in state.keywords if each.arg != "dtype"]
    if dtype is not None:
        state.keywords.append(ast.keyword("dtype", ast.Constant(dtype)))
