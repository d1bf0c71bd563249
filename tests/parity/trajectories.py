"""Train two optimizers alike, and measure how far apart they end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from interpreter import INTERPRETED
from parity.classes import CLOSURE_CLASSES, MATRIX_CLASSES, ONE_GROUP_CLASSES, SPARSE_CLASSES
from torch import Tensor
from torch.optim import Optimizer
from torch_versions import HAS_2_12

from optgen import use_lowering

BOUND = 1e-12  # of `relative_error`, for each tensor after 50 steps in float64
Make = Callable[[Any], Optimizer]


@dataclass
class Run:
    """An optimizer after its steps, and its parameters in order."""

    optimizer: Optimizer
    params: list[Tensor]
    loaded: bool = False  # whether it continued from a checkpoint

    @property
    def name(self) -> str:
        """Return the class's name in torch."""
        return type(self.optimizer).__name__

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each parameter and its states, with names for messages."""
        saved: Any = self.optimizer.state_dict()
        members = [p for group in self.optimizer.param_groups for p in group["params"]]
        states = {id(param): saved["state"].get(i, {}) for i, param in enumerate(members)}
        for index, param in enumerate(self.params):
            yield f"parameter {index}", param.detach()
            for key, value in _leaves(states[id(param)]):
                yield f"{key} of parameter {index}", value


def _leaves(entry: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors and numbers of a checkpoint entry, also those in LBFGS's lists.

    LBFGS's `al` is left out, because every iteration writes it before reading it.
    """
    if isinstance(entry, Mapping):
        for key, value in entry.items():
            if key != "al":
                yield from _leaves(value, key)
    elif isinstance(entry, list):
        for index, value in enumerate(entry):
            yield from _leaves(value, f"{name}[{index}]")
    elif entry is not None:
        yield name, entry if isinstance(entry, Tensor) else torch.tensor(entry, dtype=torch.float64)


def random_values(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, seed: int) -> list[Tensor]:
    """Return normally distributed numbers; for every dtype these are the same numbers, rounded."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for shape in shapes:
        value = torch.randn(shape, dtype=torch.float64, generator=generator)
        if dtype.is_complex:
            imaginary = torch.randn(shape, dtype=torch.float64, generator=generator)
            value = torch.complex(value, imaginary)
        tensors.append(value.to(dtype))
    return tensors


def random_parameters(
    shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, seed: int = 0
) -> list[Tensor]:
    return [torch.nn.Parameter(value) for value in random_values(shapes, dtype, seed)]


def train(run: Run, steps: int, start: int = 0, skip_some_gradients: bool = False) -> None:
    """Take steps with gradients that depend on the step only.

    For classes that take a closure, a loss determines the gradients. With `skip_some_gradients`,
    some parameters have no gradient.
    """
    shapes = [tuple(param.shape) for param in run.params]
    for step in range(start, start + steps):
        grads = random_values(shapes, torch.float64, 1000 + step)
        if run.name in CLOSURE_CLASSES:
            maximize = run.optimizer.param_groups[0].get("maximize", False)
            run.optimizer.step(_loss(run.params, skip_some_gradients, -1.0 if maximize else 1.0))
            continue
        for index, (param, grad) in enumerate(zip(run.params, grads, strict=True)):
            is_absent = skip_some_gradients and _has_no_gradient(step, index)
            param.grad = None if is_absent else _gradient(run, param, grad)
        run.optimizer.step()


def _has_no_gradient(step: int, index: int) -> bool:
    return (step + index) % 5 == 4


def _gradient(run: Run, param: Tensor, grad: Tensor) -> Tensor:
    """Return a gradient like the parameter: complex, strided, of its dtype, or with sparse rows."""
    if param.is_complex():
        grad = torch.complex(grad, grad.flip(0) if grad.dim() else -grad)
    like_param = torch.empty_like(param).copy_(grad)
    return sparse_rows(like_param) if run.name in SPARSE_CLASSES else like_param


def sparse_rows(grad: Tensor) -> Tensor:
    """Return a sparse gradient of about half of the rows; one row comes twice, with two values."""
    rows = [row for row in range(len(grad)) if grad[row].sum() > 0]
    parts = [grad[row] for row in rows]
    if rows:
        rows, parts = [rows[-1], *rows], [parts[0] / 2, *parts]
    return torch.sparse_coo_tensor(
        torch.tensor([rows], dtype=torch.int64),
        torch.stack(parts) if parts else grad[:0],
        grad.shape,
        check_invariants=True,
    )


def _loss(params: Sequence[Tensor], skip_some_gradients: bool, sign: float) -> Any:
    """Return a closure with a loss that is strictly convex and not quadratic.

    Its curvature differs between directions. With the sign -1 the loss has a maximum.
    """
    targets = random_values([tuple(param.shape) for param in params], params[0].dtype, 1000)

    def closure() -> Tensor:
        total = torch.zeros((), dtype=params[0].dtype)
        for index, (param, target) in enumerate(zip(params, targets, strict=True)):
            weights = torch.logspace(0, 1, param.numel(), dtype=param.dtype).view(param.shape)
            distance = param.detach() - target
            is_absent = skip_some_gradients and index == 1
            param.grad = None if is_absent else sign * (weights * distance + torch.tanh(distance))
            if not is_absent:
                total = total + (
                    (weights * distance**2).sum() / 2 + torch.cosh(distance).log().sum()
                )
        return sign * total

    return closure


SHAPES = ((3, 4), (), (0,), (2, 3, 2), (17,))
SHAPES_OF_LATE_GROUP = ((4, 3), (5,))
INTERPRETED_SHAPES: tuple[tuple[int, ...], ...] = ((515,), ())
"""Shapes for the interpreter, which takes 1 ms per block: at most two blocks, and one element."""


def shapes_for(name: str) -> tuple[tuple[int, ...], ...]:
    """Return shapes of parameters that a class takes."""
    if name in MATRIX_CLASSES:
        return ((3, 4), (6, 2), (1, 5), (4, 4))
    if name in (*SPARSE_CLASSES, *CLOSURE_CLASSES):
        return ((3, 4), (6,), (4, 2, 3))
    if name == "Adafactor":  # torch divides by the 0 elements of an empty parameter
        return tuple(shape for shape in SHAPES if shape != (0,))
    return INTERPRETED_SHAPES if INTERPRETED else SHAPES


def train_with_events(make: Make, steps: int = 50, dtype: torch.dtype = torch.float64) -> Run:
    """Train with events that a training loop may have.

    Two groups have different options. Some gradients are absent in some steps. A third group is
    added after a fifth of the steps. Learning rates change after three fifths.
    """
    name = class_name(make)
    params, late_params = (
        random_parameters(shapes_for(name), dtype),
        random_parameters(_shapes_of_late_group(name), dtype, seed=7),
    )
    half = (len(params) + 1) // 2
    if name in ONE_GROUP_CLASSES:
        return _train_one_group(make, params, steps)
    run = Run(make([{"params": params[:half]}, {"params": params[half:]}]), params)
    first, second = run.optimizer.param_groups
    _scale_options(second, 1.5)
    fifth = steps // 5
    train(run, fifth, skip_some_gradients=True)
    run.optimizer.add_param_group({"params": late_params, "lr": first["lr"]})
    _scale_options(run.optimizer.param_groups[2], 0.5)
    run.params = [*params, *late_params]
    train(run, 2 * fifth, fifth, skip_some_gradients=True)
    for group in run.optimizer.param_groups:
        group["lr"] = group["lr"] * 0.3
    train(run, steps - 3 * fifth, 3 * fifth, skip_some_gradients=True)
    return run


def class_name(make: Make) -> str:
    """Return the class's name in torch."""
    return type(make([torch.nn.Parameter(torch.ones(1, 1))])).__name__


def _shapes_of_late_group(name: str) -> tuple[tuple[int, ...], ...]:
    if name == "Adagrad" and not HAS_2_12:
        return ()  # torch makes no state for an added group
    if name in MATRIX_CLASSES:
        return SHAPES_OF_LATE_GROUP[:1]
    return SHAPES_OF_LATE_GROUP[1:] if INTERPRETED else SHAPES_OF_LATE_GROUP


def _train_one_group(make: Make, params: list[Tensor], steps: int) -> Run:
    """Train one group; the learning rate changes after half of the steps."""
    run = Run(make(params), params)
    train(run, steps // 2, skip_some_gradients=True)
    run.optimizer.param_groups[0]["lr"] = run.optimizer.param_groups[0]["lr"] * 0.3
    train(run, steps - steps // 2, steps // 2, skip_some_gradients=True)
    return run


def _scale_options(group: dict[str, Any], factor: float) -> None:
    for key in ("lr", "weight_decay", "eps", "momentum_decay", "lambd", "lr_decay"):
        value = group.get(key)
        if value is not None and not isinstance(value, tuple):
            group[key] = value * factor


def assert_close(found: Run, expected: Run, bound: float | None = None) -> None:
    """Check that both runs have the same tensors, within a bound of their relative error.

    Without a bound, each tensor has its own.
    """
    ours, theirs = dict(found.tensors()), dict(expected.tensors())
    assert list(ours) == list(theirs)
    errors = {name: relative_error(ours[name], theirs[name]) for name in ours}
    bounds = {name: _bound_of_tensor(found, name) if bound is None else bound for name in ours}
    too_large = {name: e for name, e in errors.items() if not e <= bounds[name]}
    assert not too_large, too_large


def _bound_of_tensor(run: Run, tensor: str) -> float:
    """Return a tensor's bound for 50 steps in float64; it is larger if torch is less exact."""
    if run.name == "ASGD" and run.loaded:
        return 1e-6  # torch loads eta and mu as float64, but still rounds them to float32
    if run.name == "Muon" and tensor.startswith("parameter"):
        return 5e-3  # Newton-Schulz in bfloat16
    if run.name == "LBFGS" and not tensor.startswith("parameter"):
        return 1e-9  # differences of gradients that are nearly equal
    return BOUND


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, divided by the largest expected element; 0 if empty."""
    assert found.shape == expected.shape
    if not expected.numel():
        return 0.0
    wide = torch.complex128 if expected.is_complex() else torch.float64
    found, expected = found.detach().to(wide), expected.detach().to(wide)
    difference = (found - expected).abs().max()
    if difference == 0:
        return 0.0
    return float(difference / expected.abs().max())


def forced_lowering(lowering: str | None) -> contextlib.AbstractContextManager[None]:
    """Force a lowering; with None, let the optimizer choose."""
    return use_lowering(lowering) if lowering else contextlib.nullcontext()
