"""Compute a step by the rule in float64: the right values, and bounds on rounding errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fuzz import eight_bits
from fuzz.bounded_ops import STORE, bounded_meanings
from fuzz.bounded_tensors import (
    BoundedTensor,
    ParamOrGrad,
    lift,
    unit_of_plain_tensors,
    watch_branches,
)
from optgen.contract.states import AT_LEAST_FLOAT32, Shape
from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import Member, dtype_of, evaluate_together, exists, properties_of
from optgen.ir.execution import widens
from optgen.ir.nodes import Call, If, Program, Stmt

_SLACK = 4.0
"""Factor on bounds, because they are first-order and an op may consist of several operations."""


@dataclass
class Expected:
    """The right values, and bounds on their rounding errors.

    `comparable` is a mask of the elements that have a bound.
    """

    value: Tensor
    bound: Tensor
    comparable: Tensor

    def first_difference(self, actual: Tensor) -> str:
        """Return how and where a tensor differs first; "" if it does not."""
        actual = actual.detach().double()
        if actual.shape != self.value.shape:
            return f"has shape {tuple(actual.shape)}, expected {tuple(self.value.shape)}"
        is_wrong = self.comparable & ~((actual - self.value).abs() <= self.bound)
        if not bool(is_wrong.any()):
            return ""
        index = is_wrong.flatten().nonzero()[0].item()
        found, expected, bound = (
            x.flatten()[index].item() for x in (actual, self.value, self.bound)
        )
        place = f"element {index} of {is_wrong.numel()}"
        return f"is {found!r}, expected {expected!r} with an error of at most {bound:.1e}, {place}"


@dataclass
class Step:
    """The parameter and the states, by key, after a step."""

    values: dict[str, Expected]
    sure: bool  # whether no branch depends on rounding

    def is_moderate(self) -> bool:
        """Tell whether the next step can start from these values: all comparable, and below 1e4."""
        return all(bool((x.comparable & (x.value.abs() < 1e4)).all()) for x in self.values.values())


PARAM = ""
"""The parameter's key among the values of a step."""


@dataclass(frozen=True)
class StepArguments:
    """The arguments of a parameter's step; `state` is a dict by key, as in a checkpoint."""

    hypers: Mapping[str, Any]
    param: Tensor
    grad: Tensor
    state: Mapping[str, Any]
    group: int = 0  # the index of the param group
    index: int = 0  # the index of the parameter


def step_by_rule(algorithm: Algorithm, arguments: StepArguments) -> Step:
    """Compute the step of one parameter alone."""
    return steps_by_rule(algorithm, [arguments])[0]


def steps_by_rule(algorithm: Algorithm, all_arguments: Sequence[StepArguments]) -> list[Step]:
    """Compute the step of several parameters together; all must be 0-dim, or none."""
    dtype = all_arguments[0].param.dtype
    is_narrow, eps = dtype != torch.float64, torch.finfo(dtype).eps
    original, algorithm = algorithm, eight_bits.with_float32_states(algorithm)
    if any(s.dtype == "float32" for s in algorithm.states if s.shape != "scalar"):
        eps = max(eps, torch.finfo(torch.float32).eps)
    param_is_0_dim = all_arguments[0].param.ndim == 0
    members = [_member(algorithm, arguments, eps) for arguments in all_arguments]
    rule_with_stores = _with_stores(algorithm, all_arguments[0].param)
    with (
        unit_of_plain_tensors(eps, param_is_0_dim),
        bounded_meanings(has_coarse_orthogonalize=is_narrow),
        watch_branches() as unsure,
    ):
        results = evaluate_together(rule_with_stores, members)
        values_by_param = [
            {
                PARAM: _expected(value, dtype, arguments.param.shape),
                **{
                    k: _expected(v, *_dtype_and_shape(rule_with_stores, k, arguments))
                    for k, v in states.items()
                },
            }
            for arguments, (value, states) in zip(all_arguments, results, strict=True)
        ]
    return [
        Step(eight_bits.round_to_codes(original, values), not unsure) for values in values_by_param
    ]


def _member(algorithm: Algorithm, arguments: StepArguments, eps: float) -> Member:
    """Return the evaluator's arguments, with bounds on the rounding errors of all tensors."""
    scalars = {s.key for s in algorithm.scalar_states()}
    state: dict[str, Any] = {}
    for key, value in arguments.state.items():
        unit = torch.finfo(value.dtype).eps if key in scalars else eps
        state[key] = value if key == "step" else BoundedTensor(value.double(), eps=unit)
    param, grad = (ParamOrGrad(x.double(), eps=eps) for x in (arguments.param, arguments.grad))
    param.stored_dtype = arguments.param.dtype
    default_dtype = torch.get_default_dtype()
    param_and_grad: Any = (param, grad)
    return Member(
        arguments.hypers,
        *param_and_grad,
        state,
        default_dtype,
        index=arguments.index,
        group=arguments.group,
    )


def _with_stores(algorithm: Algorithm, param: Tensor) -> Algorithm:
    """Return the rule with every assigned tensor rounded to its dtype, unless the rule widens.

    A lowering may store a tensor, which rounds it, and read it again.
    """
    if widens(algorithm):
        return algorithm
    scalars = {s.symbol for s in algorithm.scalar_states()}
    dtypes = {algorithm.param: param.dtype} | {
        s.symbol: state_dtype(algorithm, s.key, param)
        for s in algorithm.states
        if s.symbol not in scalars
    }

    def with_stores(program: Program) -> Iterator[Stmt]:
        for stmt in program:
            if isinstance(stmt, If):
                then, orelse = tuple(with_stores(stmt.then)), tuple(with_stores(stmt.orelse))
                yield replace(stmt, then=then, orelse=orelse)
            elif stmt.target.name in dtypes:
                yield replace(stmt, value=Call(STORE[dtypes[stmt.target.name]], (stmt.value,)))
            else:
                yield stmt

    return replace(algorithm, rule=tuple(with_stores(algorithm.rule)))


def _dtype_and_shape(
    algorithm: Algorithm, key: str, arguments: StepArguments
) -> tuple[torch.dtype, torch.Size]:
    """Return the dtype and the shape of a state, or of the step count."""
    shape = next((s.shape for s in algorithm.states if s.key == key), "scalar")
    sizes = _shape(arguments.param, shape, arguments.hypers)
    return state_dtype(algorithm, key, arguments.param), torch.Size(sizes)


def state_dtype(algorithm: Algorithm, key: str, param: Tensor) -> torch.dtype:
    """Return the dtype of a state, or of the step count."""
    state = next((s for s in algorithm.states if s.key == key), None)
    if state is None or state.shape == "scalar":
        default = torch.get_default_dtype()
        return dtype_of(state, default) if state else default
    if state.dtype == AT_LEAST_FLOAT32:
        return torch.promote_types(param.dtype, torch.float32)
    if state.is_quantized:
        return torch.float32
    return getattr(torch, state.dtype) if state.dtype else param.dtype


def _expected(value: Any, dtype: torch.dtype, shape: torch.Size) -> Expected:
    x = lift(value)
    eps = max(torch.finfo(dtype).eps, x.eps)
    bound = _SLACK * (x.e + eps * x.v.abs()) + torch.finfo(dtype).tiny
    fits = x.v.abs() < torch.finfo(dtype).max / 2
    return Expected(*(y.expand(shape) for y in (x.v, bound, x.ok & fits)))


def fresh_states(
    algorithm: Algorithm, hypers: Mapping[str, Any], param: Tensor
) -> dict[str, Tensor]:
    """Return every state of a parameter before its first step."""
    states = {}
    for state in algorithm.states:
        if state.step_argument or not exists(state, {**hypers, **properties_of(param)}):
            continue
        start = {"p": param, "index": torch.zeros(())}.get(str(state.init))
        if start is None:
            start = hypers[state.init] if isinstance(state.init, str) else state.init
        shape = _shape(param, state.shape, hypers)
        dtype = state_dtype(algorithm, state.key, param)
        states[state.key] = torch.zeros(shape, dtype=dtype) + torch.as_tensor(start).to(dtype)
    return states


def _shape(param: Tensor, shape: Shape, hypers: Mapping[str, Any]) -> list[int]:
    if shape == "scalar":
        return []
    sizes = list(param.shape)
    if shape in ("row", "col"):
        sizes[-1 if shape == "row" else -2] = 1
    elif not isinstance(shape, str):
        rows, cols = sizes[-2:]
        sizes_by_name = {
            "rows": rows,
            "cols": cols,
            "rank": min(int(hypers.get("rank", 1)), rows, cols),
        }
        sizes[-2:] = [sizes_by_name[name] for name in shape]
    return sizes
