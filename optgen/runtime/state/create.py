"""Create the states of parameters, with torch's keys, dtypes, shapes and devices."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, repeat
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor

from optgen.contract.states import AT_LEAST_FLOAT32
from optgen.runtime.rule import Group, Rule, State
from optgen.runtime.state.pieces import Seen, seen_of_group, suits_parameters
from optgen.runtime.state.scalars import as_scalar, as_scalars
from optgen.runtime.tensors.dtensor import all_plain, is_dtensor
from optgen.runtime.tensors.quantized import QuantizedTensor, spec_like
from optgen.runtime.tensors.sharding import zeros_for_matrix, zeros_reduced
from optgen.runtime.torch_private import foreach_clone, local_tensor, numel

_shape, _dtype, _device = attrgetter("shape"), attrgetter("dtype"), attrgetter("device")
# Up to this size of a parameter, a copy of a row or column state takes no longer than new zeros.
_MAX_ELEMENTS_TO_COPY = 1 << 12

CreatedState = tuple[dict[str, Any], str]  # the dict of a parameter's states, and a new key in it


def state_keys(rule: Rule, group: Group) -> list[str]:
    """Return the keys of the states that parameters of this group have."""
    return [
        state.key
        for state in rule.states
        if not (state.step_argument or state.of_group) and state.is_present(group)
    ]


def create_missing(
    rule: Rule,
    states: MutableMapping[Tensor, Any],
    group: Group,
    params: Iterable[Tensor],
    defaults: Mapping[str, Any],
    before_step: bool = False,
    groups: Iterable[Group] = (),
) -> list[CreatedState]:
    """Create the missing states of parameters; return those whose keys are in `rule.fresh`.

    The init of a state may name a hyperparameter. An eager state then begins with the value in the
    optimizer's `defaults`, even if the parameter's group has another value, or the parameter joined
    later. Any other state begins with the value in the group. A state whose init is "index" begins
    as the parameter's index among all parameters of the `groups`.

    A key can be missing after the first step too: a flag was switched on, a checkpoint was made
    without the key, or an old checkpoint holds None.

    A step treats a state of `rule.fresh` differently if the state is missing. So these states are
    not created if `before_step`.
    """
    keys = set(state_keys(rule, group)).difference(rule.fresh if before_step else ())
    present_states = [state for state in rule.states if state.key in keys]
    if not present_states and rule.step is None:
        return []
    rule.rank(group)  # raises for an invalid rank, before anything is created
    params = list(params)
    seen = params if rule.sees_whole(group) else seen_of_group(rule, group, params)
    with _gc_paused(len(params) * (1 + len(present_states))):
        dicts = [states[param] for param in params]
        if rule.step is not None:
            _create_step_counts(rule, group, params, dicts)
        created: list[CreatedState] = []
        for state in present_states:
            changed = _create_state(rule, state, group, params, seen, dicts, defaults, groups)
            created += [(values, state.key) for values in changed if state.key in rule.fresh]
    return created


_NO_TENSOR = "API has changed, `state_steps` argument must contain a list of singleton tensors"


def _create_step_counts(
    rule: Rule, group: Group, params: list[Tensor], dicts: list[dict[str, Any]]
) -> None:
    """Create the step counts of parameters that have none."""
    if rule.step == "int":
        for values in dicts:
            values.setdefault("step", 0)
        return
    existing = {index: values["step"] for index, values in enumerate(dicts) if "step" in values}
    if not all(isinstance(count, Tensor) for count in existing.values()):
        raise RuntimeError(_NO_TENSOR)
    for index, count in existing.items():
        if not count.is_floating_point():  # from a converted checkpoint; torch accepts it too
            dicts[index]["step"] = as_scalar(float(count), rule, group, params[index])
    missing = [index for index in range(len(dicts)) if index not in existing]
    counts = as_scalars(0.0, rule, group, [params[index] for index in missing])
    for index, count in zip(missing, counts, strict=True):
        dicts[index]["step"] = count


def _create_state(
    rule: Rule,
    state: State,
    group: Group,
    params: list[Tensor],
    seen: Sequence[Seen],
    dicts: list[dict[str, Any]],
    defaults: Mapping[str, Any],
    groups: Iterable[Group],
) -> list[dict[str, Any]]:
    """Create one state where it is missing; return the dicts that lacked it."""
    missing_indices = []
    is_whole = rule.sees_whole(group)
    suits = state.suits_each(params, group) if is_whole else suits_parameters(state, seen, group)
    for index, values in enumerate(dicts):
        value = values.get(state.key)
        if value is None:
            if suits[index]:
                missing_indices.append(index)
        elif not isinstance(value, Tensor):
            raise TypeError(
                f"{state.key} of a parameter must be a tensor, not {value!r}: put one into "
                "optimizer.state, or delete the entry to begin anew"
            )
        elif value.is_sparse:  # torch keeps SGD's momentum as sparse as its gradients
            values[state.key] = value.to_dense()
    lacking_params = [params[i] for i in missing_indices]
    lacking_seen = [seen[i] for i in missing_indices]
    initial = (
        _indices(rule, state, group, lacking_params, groups)
        if state.init == "index"
        else _initial_values(rule, state, group, lacking_params, lacking_seen, defaults)
    )
    for index, value in zip(missing_indices, initial, strict=True):
        dicts[index][state.key] = value
    return [dicts[index] for index in missing_indices]


@contextmanager
def _gc_paused(num_created: int) -> Iterator[None]:
    """Pause the garbage collector while `num_created` objects are created.

    Thousands of new tensors start a full collection, which searches all of torch for 90 ms. The
    pause alone would only delay the collection. So freeze and unfreeze move the new objects to the
    oldest generation. None of them can be garbage yet.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
            if num_created > gc.get_threshold()[0] and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()


def _initial_values(
    rule: Rule,
    state: State,
    group: Mapping[str, Any],
    params: list[Tensor],
    seen: Sequence[Seen],
    defaults: Mapping[str, Any],
) -> Sequence[Tensor]:
    """Return a state's initial values for several parameters, made by few calls if possible."""
    if state.shape != "like" and seen and isinstance(seen[0], list):
        pieces_by_param = zip(params, cast("Sequence[list[Tensor]]", seen), strict=True)
        return [
            _values_of_pieces(rule, state, group, param, pieces, defaults)
            for param, pieces in pieces_by_param
        ]
    views = cast("list[Tensor]", seen)
    if state.init == 0 and state.shape == "like" and not state.is_quantized:
        if state.dtype is None:
            return list(map(torch.zeros_like, params))
        return [torch.zeros_like(param, dtype=dtype_of(state, param.dtype)) for param in params]
    if state.is_quantized:
        return [_initial_codes(rule, state, group, param, defaults) for param in params]
    init = _init_number(state, group, defaults)
    if isinstance(init, (int, float)) and params and all_plain(params):
        if state.shape == "like" and state.dtype is None and not any(map(torch.is_complex, params)):
            return list(map(torch.full_like, params, repeat(init)))
        if state.shape == "scalar":
            dtype, number = dtype_of(state, params[0].dtype), float(init)
            return as_scalars(number, rule, group, params, dtype, state.on_device)
        are_small = max(map(numel, params)) <= _MAX_ELEMENTS_TO_COPY
        if init == 0 and state.shape != "like" and are_small:
            return _copied_zeros(state, params, views, rule.rank(group))
    pairs = zip(params, views, strict=True)
    return [_initial_value(rule, state, group, param, view, defaults) for param, view in pairs]


def _values_of_pieces(
    rule: Rule,
    state: State,
    group: Mapping[str, Any],
    param: Tensor,
    pieces: list[Tensor],
    defaults: Mapping[str, Any],
) -> Tensor:
    """Return the initial values of the pieces of a parameter, one after the other, as a vector."""
    suitable = [each for each in pieces if state.suits(each, group)]
    values = _initial_values(rule, state, group, [param] * len(suitable), suitable, defaults)
    return torch.cat([value.reshape(-1) for value in values])


def _initial_codes(
    rule: Rule, state: State, group: Mapping[str, Any], param: Tensor, defaults: Mapping[str, Any]
) -> Tensor:
    """Return the initial value of one parameter's quantized state."""
    if state.init == 0 and has_codes(state, param):
        return quantized_zeros(param, state.block, state.map)
    return as_stored(state, param, _initial_value(rule, state, group, param, param, defaults))


def as_stored(state: State, param: Tensor, value: Tensor) -> Tensor:
    """Return a quantized state's value as codes; the value itself if the parameter is too small."""
    return quantize(value, state.block, state.map) if has_codes(state, param) else value


def has_codes(state: State, param: Tensor) -> bool:
    """Tell whether a parameter is large enough for a state of codes; a DTensor by its whole size.

    Raises:
        NotImplementedError: The parameter is complex.
    """
    if param.is_complex():
        raise NotImplementedError(
            f"{state.key} is a state of {state.width}, and a parameter is of {param.dtype}: "
            "complex parameters take states of other dtypes"
        )
    return numel(param) >= state.min_elements


def _indices(
    rule: Rule,
    state: State,
    group: Mapping[str, Any],
    params: list[Tensor],
    groups: Iterable[Group],
) -> Sequence[Tensor]:
    """Return each parameter's index among all parameters, as a scalar state.

    Each piece of a parameter counts as a parameter; the state is the vector of their indices.
    """
    if not params:
        return []
    counts = ((p, len(rule.pieces(each) or [p])) for each in groups for p in each["params"])
    counted, sizes = zip(*counts, strict=True)
    first = dict(zip(map(id, counted), accumulate(sizes, initial=0), strict=False))
    dtype, pieces = dtype_of(state, params[0].dtype), rule.pieces(group)
    if pieces is None:
        return [as_scalar(float(first[id(p)]), rule, group, p, dtype) for p in params]
    return [
        torch.stack(
            [
                as_scalar(float(first[id(p)] + position), rule, group, p, dtype)
                for position in range(len(pieces))
            ]
        )
        for p in params
    ]


def _copied_zeros(
    state: State, params: list[Tensor], views: list[Tensor], rank: int
) -> Sequence[Tensor]:
    """Return zeros for each parameter's state of rows, columns or matrices.

    Parameters of equal shapes, dtypes and devices get copies of one tensor.
    """
    keys: list[Any] = list(map(_shape, views))
    dtypes, devices = list(map(_dtype, params)), list(map(_device, params))
    if len(set(dtypes)) > 1 or len(set(devices)) > 1:
        keys = list(zip(keys, dtypes, devices, strict=True))
    examples = dict(zip(keys, zip(params, views, strict=True), strict=True))
    zeros = {
        key: _reduced_zeros(state, param, view, dtype_of(state, param.dtype) or param.dtype, rank)
        for key, (param, view) in examples.items()
    }
    return foreach_clone([zeros[key] for key in keys])


def _reduced_zeros(
    state: State, param: Tensor, view: Tensor, dtype: torch.dtype, rank: int
) -> Tensor:
    """Return zeros for a state of rows, columns or a matrix; a DTensor if the parameter is one."""
    if not isinstance(state.shape, str):
        return zeros_for_matrix(param, state, state.shape_for(view, rank), dtype)
    if is_dtensor(type(param)):
        return zeros_reduced(param, view, -1 if state.shape == "row" else -2, dtype)
    return param.new_zeros(state.shape_for(view, rank), dtype=dtype)


def dtype_of(state: State, param_dtype: torch.dtype) -> torch.dtype | None:
    """Return the dtype that a state declares for parameters of a dtype; None if it declares none.

    The numbers of a quantized state are float32.
    """
    if state.is_quantized:
        return torch.float32
    if state.dtype == AT_LEAST_FLOAT32:
        return torch.promote_types(param_dtype, torch.float32)
    dtype: torch.dtype | None = getattr(torch, state.dtype) if state.dtype else None
    return dtype


def _init_number(state: State, group: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    """Return a state's initial number or tensor; "p" for a copy of the parameter."""
    if not isinstance(state.init, str) or state.init == "p":
        return state.init
    return (defaults if state.eager else group)[state.init]


def _initial_value(
    rule: Rule,
    state: State,
    group: Mapping[str, Any],
    param: Tensor,
    view: Tensor,
    defaults: Mapping[str, Any],
) -> Tensor:
    """Return the initial value of one parameter's state; `view` is the parameter in its view."""
    dtype = dtype_of(state, param.dtype) or param.dtype
    if state.init == "p":
        # In a differentiable step autograd is enabled, and records that the parameter was copied.
        source = param if torch.is_grad_enabled() else param.detach()
        return source.clone(memory_format=torch.preserve_format).to(dtype)
    init = _init_number(state, group, defaults)
    is_differentiable = isinstance(init, Tensor) and init.requires_grad and torch.is_grad_enabled()
    number = float(init.detach() if isinstance(init, Tensor) else init)
    if state.shape == "scalar":
        value = as_scalar(number, rule, group, param, dtype_of(state, param.dtype), state.on_device)
        return value.copy_(init) if is_differentiable else value
    if state.shape == "like":
        value = torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
    else:
        value = _reduced_zeros(state, param, view, dtype, rule.rank(group))
    if is_differentiable:
        value = value + (torch.complex(init, init) if value.is_complex() else init).to(dtype)
    elif number:
        # A lowering sees a complex state as pairs of reals; each of the two begins with the number.
        value.fill_(complex(number, number) if value.is_complex() else number)
    return value


def quantize(values: Tensor, block: int, code_map: str) -> Tensor:
    """Return a quantized tensor; a DTensor with quantized local tensors."""
    if not is_dtensor(type(values)):
        return QuantizedTensor.zeros_like(values, block, code_map).quantize_(values)
    local = local_tensor(values)
    return _sharded(values, QuantizedTensor.zeros_like(local, block, code_map).quantize_(local))


def quantized_zeros(like: Tensor, block: int, code_map: str) -> Tensor:
    """Return quantized zeros like a tensor or a DTensor."""
    if not is_dtensor(type(like)):
        return QuantizedTensor.zeros_like(like, block, code_map)
    return _sharded(like, QuantizedTensor.zeros_like(local_tensor(like), block, code_map))


def _sharded(like: Any, local: QuantizedTensor) -> Tensor:
    """Return a DTensor over codes, with the mesh and placements of another DTensor."""
    from optgen.runtime.tensors.quantized_dtensor import over_local

    return over_local(local, spec_like(like, local.dtype))
