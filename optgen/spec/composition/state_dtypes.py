"""Change the dtypes of the states of an optimizer and its modifiers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence

from optgen.contract.states import AT_LEAST_FLOAT32, QUANTIZED
from optgen.ir.algorithm import NARROW_DTYPES
from optgen.spec.composition.names import CompositionError
from optgen.spec.composition.parts import Part, declared_key
from optgen.spec.errors import did_you_mean

_DTYPES = (None, AT_LEAST_FLOAT32, "float32", *NARROW_DTYPES)


def with_state_dtypes(
    parts: Sequence[Part],
    default: str | None,
    by_key: Mapping[str, str | None],
    quantized_options: Mapping[str, int | str],
    name: str,
) -> list[Part]:
    """Return an optimizer and its modifiers, with other dtypes of states.

    Args:
        parts: the optimizer first.
        default: the dtype of the optimizer's states that follow the parameter's dtype, except for
            single numbers; None leaves these states as they are. "8bit" applies only to states with
            a number for each element that do not begin as a copy of the parameter.
        by_key: the dtypes of some states, also of modifiers, by their checkpoint keys. None is the
            parameter's dtype.
        quantized_options: the options of states of 8 bits; empty if no dtype may be "8bit".
        name: the name of the modifier, for messages.

    Raises:
        CompositionError: a dtype or a key is unknown, or a state cannot have the dtype.
    """
    _check_dtypes((default, *by_key.values()), bool(quantized_options), name)
    copies = [part.copy() for part in parts]
    states = {declared_key(state): state for part in copies for _, state in part.states}
    _check_keys(by_key, states, name)
    if default:
        suits = _may_have_codes if default == QUANTIZED else _is_tensor
        _check_default(copies[0], default, suits, name)
        for _, state in copies[0].states:
            if suits(state) and _follows_param(state):
                _declare(state, default, quantized_options)
    for key, dtype in by_key.items():
        _declare(states[key], dtype, quantized_options)
    return copies


def _check_dtypes(dtypes: Iterable[str | None], may_quantize: bool, name: str) -> None:
    """Check that dtypes are allowed, and that none is "8bit" unless states may be quantized."""
    allowed = (*_DTYPES, QUANTIZED) if may_quantize else _DTYPES
    for dtype in dtypes:
        if dtype == QUANTIZED and not may_quantize:
            raise CompositionError(f"{name}: write modifiers.quantized() for states of 8 bits")
        if dtype not in allowed:
            listed = ", ".join(map(repr, allowed))
            raise CompositionError(f"{name}: {dtype!r} is no dtype of a state; it is {listed}")


def _check_default(
    optimizer: Part, default: str, suits: Callable[[ast.expr], bool], name: str
) -> None:
    """Check that a default dtype applies to a state, unless the optimizer has none."""
    tensors = [state for _, state in optimizer.states if _is_tensor(state)]
    fitting = [state for state in tensors if suits(state)]
    if any(map(_follows_param, fitting)) or not tensors:
        return
    if not fitting:
        message = f"no state of {optimizer.name} has the parameter's shape, so none takes 8 bits"
        raise CompositionError(f"{name}: {message}: leave it out")
    message = f"every state of {optimizer.name} declares its dtype, which {default!r} leaves as is"
    raise CompositionError(
        f"{name}: {message}: name a state, {declared_key(fitting[0])}={default!r}"
    )


def _check_keys(
    by_key: Mapping[str, str | None], states: Mapping[str, ast.expr], name: str
) -> None:
    """Check that each key belongs to a state, and that this state can have the dtype."""
    for key, dtype in by_key.items():
        if key not in states:
            hint = did_you_mean(key, states, f"there are {', '.join(states)}")
            raise CompositionError(f"{name}: no state is called `{key}`: {hint}")
        if not _is_tensor(states[key]):
            raise CompositionError(f"{name}: `{key}` is one number")
        if dtype == QUANTIZED and not _is_like(states[key]):
            raise CompositionError(
                f"{name}: `{key}` does not have the parameter's shape, so it takes no 8 bits"
            )


def _is_tensor(state: ast.expr) -> bool:
    """Tell whether a state is more than one number of a parameter, of a group or of all groups."""
    shape = _option(state, "shape")
    return shape is None or ast.unparse(shape) not in ("'scalar'", "'group'", "'all'")


def _follows_param(state: ast.expr) -> bool:
    """Tell whether a state's dtype depends on the parameter's."""
    dtype = _option(state, "dtype")
    return dtype is None or ast.literal_eval(dtype) in (None, AT_LEAST_FLOAT32)


def _is_like(state: ast.expr) -> bool:
    """Tell whether a state has the parameter's shape."""
    shape = _option(state, "shape")
    return shape is None or ast.unparse(shape) == "'like'"


def _may_have_codes(state: ast.expr) -> bool:
    """Tell whether a default of 8 bits applies. A copy of the parameter would lose digits."""
    init = _option(state, "init")
    return _is_like(state) and not (init and ast.unparse(init) == "'p'")


def _option(state: ast.expr, name: str) -> ast.expr | None:
    assert isinstance(state, ast.Call)
    return next((each.value for each in state.keywords if each.arg == name), None)


def _declare(
    state: ast.expr, dtype: str | None, quantized_options: Mapping[str, int | str]
) -> None:
    """Give the declaration of a state a dtype, and a state of 8 bits its options."""
    assert isinstance(state, ast.Call)
    names = ("dtype", *quantized_options)
    state.keywords = [each for each in state.keywords if each.arg not in names]
    options: dict[str, int | str] = {} if dtype is None else {"dtype": dtype}
    if dtype == QUANTIZED:
        options |= quantized_options
    for name, value in options.items():
        state.keywords.append(ast.keyword(name, ast.Constant(value)))
