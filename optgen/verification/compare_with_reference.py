"""Take the steps of a case on both sides, each with the gradients at its own parameters."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from optgen.runtime import newton_schulz
from optgen.runtime.backends import BACKENDS
from optgen.runtime.choose_lowering import use_lowering
from optgen.runtime.toolchain import compiler
from optgen.verification.case import Case, Inputs, LibraryReference, Reference
from optgen.verification.patch_attribute import patch_attribute

BY_HAND = "by_hand"
"""Key in place of the name of a lowering, for a class that is written by hand."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The parameters of a reference after each step, and the reference after the last one."""

    params: list[list[Tensor]]
    reference: Reference | LibraryReference


@dataclass(frozen=True, eq=False)
class CaseRun:
    """Our optimizer after the steps of a case, and its largest difference from the reference."""

    optimizer: Optimizer
    params: list[Tensor]
    reference: Reference | LibraryReference
    errors: tuple[float, ...]  # of each parameter, the largest difference of an element in any step

    @property
    def max_error(self) -> float:
        """The largest difference of an element of any parameter after any step."""
        return functools.reduce(larger_error, self.errors, 0.0)


@functools.cache
def trajectory(case: Case) -> Trajectory:
    """Take the steps of the reference, once for all lowerings."""
    reference = case.make_reference(case.problem.initial_params())
    params = []
    for step in range(1, case.steps + 1):
        if isinstance(reference, LibraryReference):
            take_step(case, reference.optimizer, reference.params, step)
        else:
            current = reference.params
            reference.step(_gradients(case, current, step), _extra_inputs(case, current, step))
        params.append([param.detach().clone() for param in reference.params])
    return Trajectory(params, reference)


def run_case(case: Case, cls: Callable[..., Optimizer], lowering: str) -> CaseRun:
    """Take the steps of a case with our optimizer, through one lowering."""
    expected = trajectory(case)
    on_gpu = lowering == "fused_triton" and torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    initial_params = case.problem.initial_params()
    params = [p.to(device, case.dtype, copy=True).requires_grad_() for p in initial_params]
    optimizer = cls(params, **case.options)
    errors = [0.0] * len(params)
    with _replace_iterations(case), _use_lowering(lowering):
        for step, expected_params in enumerate(expected.params, 1):
            take_step(case, optimizer, params, step)
            errors = larger_errors(errors, max_differences(params, expected_params))
    return CaseRun(optimizer, params, expected.reference, tuple(errors))


def take_step(case: Case, optimizer: Optimizer, params: list[Tensor], step: int) -> None:
    """Take one step of an optimizer, with the gradients at the current parameters."""
    current = [param.detach().cpu().double() for param in params]
    gradients = _gradients(case, current, step)
    for param, gradient in zip(params, gradients, strict=True):
        param.grad = gradient.to(param)
    if case.with_closure:
        optimizer.step(_closure(case, params))
        return
    inputs: dict[str, Any] = {
        name: values and [value.to(p) for value, p in zip(values, params, strict=True)]
        for name, values in _extra_inputs(case, current, step).items()
    }
    optimizer.step(**inputs)


def max_difference(params: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference of an element; NaN if any difference is NaN."""
    return functools.reduce(larger_error, max_differences(params, expected))


def max_differences(params: list[Tensor], expected: list[Tensor]) -> list[float]:
    """Return the largest difference of an element of each parameter; NaN if one is NaN."""
    pairs = zip(params, expected, strict=True)
    return [(p.detach().cpu().double() - e).abs().max().item() for p, e in pairs]


def runnable_lowerings(cls: type[Optimizer]) -> tuple[str, ...]:
    """Return the lowerings that a class has and that this machine can run."""
    rule = getattr(cls, "rule", None)
    if rule is None:
        return (BY_HAND,)
    missing = set()
    if compiler.find() is None:
        missing.add("fused_cpu")
    if rule.why_no_sweeps or rule.why_not_in_triton or rule.gradient == "sparse_only":
        missing.add("fused_triton")
    if rule.gradient == "sparse_only":
        missing.add("foreach")
    if find_spec("triton") is None or not (torch.cuda.is_available() or _triton_is_interpreted()):
        missing.add("fused_triton")
    return tuple(name for name in BACKENDS if name not in missing)


def _triton_is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1" and find_spec("numpy") is not None


def larger_error(one: float, other: float) -> float:
    """Return the larger of two differences; NaN is the largest."""
    return other if other > one or math.isnan(other) else one


def larger_errors(some: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the larger of two differences of each parameter; NaN is the largest."""
    return list(map(larger_error, some, others))


def _gradients(case: Case, params: list[Tensor], step: int) -> list[Tensor]:
    gradients = case.problem.gradients(params, step)
    if case.sparse_gradients:
        return [_sparse_gradient(gradient, step) for gradient in gradients]
    return gradients


def _sparse_gradient(gradient: Tensor, step: int) -> Tensor:
    """Return a sparse gradient of some rows. The first row comes twice, with half its values."""
    rows = [row for row in range(len(gradient)) if (row + step) % 3]
    values = torch.stack([gradient[rows[0]] / 2, gradient[rows[0]] / 2, *gradient[rows[1:]]])
    indices = torch.tensor([[rows[0], *rows]])
    return torch.sparse_coo_tensor(indices, values, gradient.shape, check_invariants=True)


def _extra_inputs(case: Case, params: list[Tensor], step: int) -> Inputs:
    return case.inputs(case.problem, params, step) if case.inputs else {}


def _closure(case: Case, params: list[Tensor]) -> Callable[[], float]:
    def closure() -> float:
        current = [param.detach() for param in params]
        for param, gradient in zip(params, _gradients(case, current, step=1), strict=True):
            param.grad = gradient
        return case.problem.loss(current, step=1).item()

    return closure


def _use_lowering(lowering: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if lowering == BY_HAND else use_lowering(lowering)


def _replace_iterations(case: Case) -> contextlib.AbstractContextManager[None]:
    """Replace our iterations of Newton and Schulz by the case's own, if the case has them."""
    if case.iterate is None:
        return contextlib.nullcontext()
    return patch_attribute(newton_schulz, "iterate", case.iterate)
