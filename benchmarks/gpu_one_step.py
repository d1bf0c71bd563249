"""Compare one step with the rule in float64, from equal parameters, states and gradients.

A comparison after many steps says little about 16 bits: an element whose updates are too small to
change it has the same large error in every lowering. One step from equal states, compared with the
result in float64 *rounded to the dtype*, leaves only the step's own rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.classes import class_of, torch_class
from benchmarks.gpu_cases import algorithm_of, give_gradients, groups, parameters, settings_of
from benchmarks.gpu_device import REHEARSAL
from optgen import use_lowering
from optgen.ir.evaluate import Member, evaluate_together

STEPS_BEFORE = 2
"""Steps of the rule in float64 that lead to the states from which the compared step begins."""
ULPS = {torch.bfloat16: 1.0, torch.float16: 1.0, torch.float32: 8.0}
"""Largest error by dtype, in units in the last place.

16 bits are rounded once, from float32. In float32 every operation of a rule rounds. On a CPU, our
kernels have errors up to 6, and torch's for-loop up to 10.
"""
MATRIX_ERRORS = {"Muon": 0.05, "SOAP": 1e-3}
"""The error of an update by matrix ops, as a fraction of the tensor's largest change.

Muon's matrix op computes in bfloat16, whatever the parameter's dtype is: 0.025 on a CPU.
"""
BY_LOWERING = {
    "fused_triton": (torch.float32, torch.bfloat16, torch.float16),
    "foreach": (torch.float32, torch.bfloat16),
    "forloop": (torch.float32, torch.bfloat16),
}
"""The dtypes to compare. Lists round after every operation, and as torch's are infinite in float16.
"""


def one_step_checks(names: Sequence[str]) -> dict[str, Callable[[], tuple[float, float]]]:
    """Return comparisons of one step of every class, in 32 and 16 bits, by every lowering."""
    return {
        f"{name} {settings or ''} {str(dtype)[6:]} {lowering}": partial(
            compare_one_step, name, number, dtype, lowering
        )
        for name in names
        for number, settings in enumerate(settings_of(name))
        for lowering, dtypes in BY_LOWERING.items()
        for dtype in dtypes
    }


@dataclass(frozen=True)
class Point:
    """Parameters and their states between two steps, in float64, rounded as they are stored."""

    params: list[Tensor]
    states: list[dict[str, Any]]


def compare_one_step(
    name: str, number: int, dtype: torch.dtype, lowering: str
) -> tuple[float, float]:
    """Return the largest error of a step in units in the last place, and the largest allowed."""
    error = error_of_step(name, number, dtype, lowering)
    if REHEARSAL and dtype == torch.bfloat16:
        return error, 2 * ULPS[dtype]  # Triton's interpreter truncates to bfloat16; a device rounds
    if lowering != "fused_triton" and hasattr(torch.optim, name):
        # torch's lists round to 16 bits after every operation, and so do our lists.
        return error, max(ULPS[dtype], 1.5 * torch_error(name, number, dtype))
    return error, ULPS[dtype]


@cache
def torch_error(name: str, number: int, dtype: torch.dtype) -> float:
    """Return the error of a step of torch's for-loop, in units in the last place."""
    return error_of_step(name, number, dtype, "")


def error_of_step(name: str, number: int, dtype: torch.dtype, lowering: str) -> float:
    """Return the largest error of a step, in units in the last place of each compared element.

    A unit is that of the largest of the old, the new and the right value, and of the tensor's
    largest change, because a difference has the rounding errors of its terms. `lowering` is ""
    for torch.
    """
    cls: Any = class_of(name) if lowering else torch_class(name)
    params = [param for param in parameters(name, dtype, dtype) if param.numel()]
    optimizer = cls(groups(params), **settings_of(name)[number])
    before, after = points_around_step(name, number, dtype)
    with use_lowering(lowering) if lowering else nullcontext():
        give_gradients(params, dtype, 0)
        give_all(params)
        optimizer.step()  # creates the states
        move_to(before, optimizer, params)
        give_gradients(params, dtype, STEPS_BEFORE)
        optimizer.step()
    worst = 0.0
    for param, old, new in compared(name, optimizer, params, before, after):
        worst = max(worst, ulps(param, old, new, MATRIX_ERRORS.get(name, 0.0)))
    return worst


def give_all(params: Sequence[Tensor]) -> None:
    """Give zero gradients to parameters without one."""
    for param in params:
        param.grad = torch.zeros_like(param) if param.grad is None else param.grad


@cache
def points_around_step(name: str, number: int, dtype: torch.dtype) -> tuple[Point, Point]:
    """Return the values before and after the compared step, by the rule in float64."""
    params = [param for param in parameters(name, dtype, dtype) if param.numel()]
    optimizer = class_of(name)(groups(params), **settings_of(name)[number])
    points = [Point([param.detach().double() for param in params], [{} for _ in params])]
    for step in range(STEPS_BEFORE + 1):
        give_gradients(params, dtype, step)
        points.append(next_point(name, optimizer, params, points[-1], dtype))
    return points[-2], points[-1]


def next_point(
    name: str,
    optimizer: torch.optim.Optimizer,
    params: Sequence[Tensor],
    point: Point,
    dtype: torch.dtype,
) -> Point:
    """Take a step of the rule in float64 of all parameters that have gradients."""
    algorithm = algorithm_of(name)
    defaults = {hyper.name: hyper.default for hyper in algorithm.hypers}
    places = {id(p): i for i, g in enumerate(optimizer.param_groups) for p in g["params"]}
    after = Point(list(point.params), list(point.states))
    stepped = [i for i, param in enumerate(params) if param.grad is not None]
    members = []
    for i in stepped:
        group = places[id(params[i])]
        hypers = defaults | optimizer.param_groups[group]
        grad = params[i].grad
        assert grad is not None
        members.append(
            Member(hypers, point.params[i], grad, point.states[i], torch.float32, dtype, i, group)
        )
    for i, (value, state) in zip(stepped, evaluate_together(algorithm, members), strict=True):
        after.params[i], after.states[i] = value, state
    return after


def move_to(point: Point, optimizer: torch.optim.Optimizer, params: Sequence[Tensor]) -> None:
    """Write a point's values into the parameters and states of an optimizer."""
    with torch.no_grad():
        for param, value, state in zip(params, point.params, point.states, strict=True):
            param.copy_(value)
            for key, held in optimizer.state[param].items():
                if isinstance(held, Tensor):
                    held.copy_(torch.as_tensor(state[key]))
                elif held is not None:
                    optimizer.state[param][key] = type(held)(state[key])


def compared(
    name: str, optimizer: Any, params: Sequence[Tensor], before: Point, after: Point
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield tensors after a step with their old and right values: parameters, elementwise states.

    States on whole matrices (covariances, bases) are left to the parameter, which depends on them.
    """
    states = [s.key for s in class_of(name).rule.states if s.shape in ("like", "row", "col")]
    for i, param in enumerate(params):
        yield param.detach(), before.params[i], after.params[i]
        if class_of(name).rule.why_uncut:
            continue
        for key in states:
            held = optimizer.state[param].get(key)
            if held is not None and key in before.states[i]:
                yield held, before.states[i][key], after.states[i][key]


def ulps(actual: Tensor, old: Tensor, right: Tensor, relative: float) -> float:
    """Return the largest error in units in the last place, beyond a part of the largest change."""
    info = torch.finfo(actual.dtype)
    found, right = actual.double(), right.to(actual.dtype).double()
    size = torch.stack((found.abs(), right.abs(), old.abs())).amax(0)
    size = size.clamp(min=(right - old).abs().max())
    _, exponent = torch.frexp(size.clamp(min=info.tiny))
    unit = torch.ldexp(torch.full_like(size, info.eps), exponent - 1)
    allowed = relative * (right - old).abs().max()
    error = (((found - right).abs() - allowed) / unit).max()
    return float("inf") if error.isnan() else max(error.item(), 0.0)
