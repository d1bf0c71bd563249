"""Provide tensors, gradients, arguments and the float64 oracle for benchmarks/gpu.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.classes import accepted_parameters, accepts_argument, class_of
from benchmarks.gpu_device import DEVICE, IS_SMALL
from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import evaluate
from optgen.passes.prepare_rule import add_maximize
from optgen.spec.read_spec import read_spec

Sizes = tuple[tuple[int, ...], ...]

_EDGES: Sizes = ((), (1,), (15,), (17,), (64, 33), (8, 16, 3, 3), (5, 16, 17), (1, 1))
_LARGE: Sizes = ((1024,), (1025,), (100_003,), (3, 40_000), (300, 400), (700, 1), (512, 256, 1, 1))
SIZES: Sizes = (*_EDGES, (40, 70), (1030,)) if IS_SMALL else (*_EDGES, *_LARGE)
STEPS = 2 if IS_SMALL else 30
MIN_COMPARED_ELEMENTS = 1_000 if IS_SMALL else 100_000
"""Smallest tensor whose rounding errors are compared with torch's. Errors of smaller tensors depend
on chance.
"""
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "SGD": [{}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}],
    "Adam": [{}, {"amsgrad": True, "maximize": True, "weight_decay": 0.1}],
    "AdamW": [{}],
    "RMSprop": [{}, {"momentum": 0.9, "centered": True, "weight_decay": 0.1}],
    "RAdam": [{}, {"decoupled_weight_decay": True, "weight_decay": 0.1}],
}
"""Constructor arguments of each run of a class.

Any other class has a run with its defaults and, if it takes weight decay, a run with 0.1 of it.
"""
BOUNDS = {"Muon": 5e-3}
"""Largest error allowed for float64 parameters, if a matrix op of the rule computes in bfloat16."""
NUM_DRAWN = 1 << (14 if IS_SMALL else 20)
"""Random numbers that all tensors share. Drawing new ones would take most of the time."""
_STRIDE = 104_729  # a prime, so that seeds begin far from each other
MAX_SIDE = 400
"""Rows or columns of the largest tensor for a rule that decomposes matrices."""
_SPECS = Path(__file__).resolve().parents[1] / "specs"


def settings_of(name: str) -> list[dict[str, Any]]:
    """Return the constructor arguments of each run of a class."""
    decayed = [{"weight_decay": 0.1}] if accepts_argument(class_of(name), "weight_decay") else []
    return SETTINGS.get(name, [{}, *decayed])


def bound_of(name: str) -> float:
    """Return the largest error allowed for float64 parameters."""
    return BOUNDS.get(name, 1e-12)


@cache
def drawn_numbers() -> Tensor:
    """Return normal numbers in float64 on the device, drawn once; equal on all devices."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(NUM_DRAWN, generator=generator, dtype=torch.float64).to(DEVICE)


def draw(size: tuple[int, ...], seed: int, precision: torch.dtype, dtype: torch.dtype) -> Tensor:
    """Return normal numbers rounded to `precision`, stored in `dtype`.

    Each seed begins at another of the numbers that were drawn once.
    """
    numbers, count = drawn_numbers(), prod(size)
    first = seed * _STRIDE % (numbers.numel() - count + 1)
    return numbers[first : first + count].reshape(size).to(precision).to(dtype, copy=True)


def parameters(name: str, precision: torch.dtype, dtype: torch.dtype) -> list[Tensor]:
    """Return parameters that a class accepts: of many sizes, unaligned, transposed, strided."""
    tensors = [draw(size, i, precision, dtype) for i, size in enumerate(SIZES)]
    tensors += [
        draw((1100,), 100, precision, dtype)[1:1041],
        draw((25, 44), 101, precision, dtype).t(),
        draw((25, 44), 102, precision, dtype)[:, ::2],
        draw((0,), 103, precision, dtype),
    ]
    if class_of(name).rule.why_uncut:
        tensors = [tensor for tensor in tensors if max(tensor.shape[-2:], default=0) <= MAX_SIDE]
    return accepted_parameters(
        class_of(name), [tensor.detach().requires_grad_() for tensor in tensors]
    )


def give_gradients(params: Sequence[Tensor], precision: torch.dtype, step: int) -> None:
    """Set gradients rounded to `precision`, in each parameter's dtype; every seventh gets None."""
    for i, param in enumerate(params):
        absent = (i + step) % 7 == 6
        seed = 1000 * (step + 1) + i
        param.grad = None if absent else draw(tuple(param.shape), seed, precision, param.dtype)


def refill_gradients(params: Sequence[Tensor], step: int) -> None:
    """Write gradients into the same memory at every step, as a captured backward pass does."""
    for i, param in enumerate(params):
        grad = draw(tuple(param.shape), 1000 * (step + 1) + i, torch.float64, param.dtype)
        if param.grad is None:
            param.grad = grad
        else:
            param.grad.copy_(grad)


def groups(params: Sequence[Tensor], count: int = 2) -> list[dict[str, Any]]:
    """Divide parameters into groups, each with its own learning rate."""
    shares = [params[i::count] for i in range(count)]
    return [
        {"params": share, "lr": 3e-3 * (1 + i / count)} for i, share in enumerate(shares) if share
    ]


@cache
def algorithm_of(name: str) -> Algorithm:
    """Return the rule of a class, from its spec file."""
    (algorithm,) = read_spec(_SPECS / f"{class_of(name).rule.name}.py")
    return add_maximize(algorithm)


class Oracle:
    """The rule evaluated in float64, beside an optimizer that starts from the same values."""

    def __init__(self, name: str, params: Sequence[Tensor]) -> None:
        self._algorithm = algorithm_of(name)
        self._states: list[dict[str, Any]] = [{} for _ in params]
        self.values = [param.detach().double().clone() for param in params]

    def step(self, optimizer: torch.optim.Optimizer, params: Sequence[Tensor]) -> None:
        """Take the step that the optimizer is about to take, or has just taken."""
        defaults = {hyper.name: hyper.default for hyper in self._algorithm.hypers}
        hypers_of = {id(p): defaults | g for g in optimizer.param_groups for p in g["params"]}
        for i, param in enumerate(params):
            if param.grad is not None:
                grad = param.grad.double()
                self.values[i], self._states[i] = evaluate(
                    self._algorithm, hypers_of[id(param)], self.values[i], grad, self._states[i]
                )

    def error(self, params: Sequence[Tensor], min_elements: int = 1) -> float:
        """Return the largest error of the parameters that have at least `min_elements`."""
        return max(_errors(params, self.values, min_elements), default=0.0)


def _errors(
    params: Sequence[Tensor], expected: Sequence[Tensor], min_elements: int
) -> Iterator[float]:
    """Yield the largest deviation of each tensor, relative to its largest element."""
    for a, b in zip(params, expected, strict=True):
        if a.numel() >= min_elements:
            error = (a.detach().double() - b).abs().max() / b.abs().max().clamp(min=1e-300)
            yield float("inf") if error.isnan() else error.item()
