"""Both sides of a proof: the original and the imported class, each with parameters of its own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from optgen.importer.counts import groups_of
from optgen.importer.names import first_argument
from optgen.importer.precision import precision
from optgen.importer.run import Subject


@dataclass(frozen=True)
class Course:
    """Steps in which the numbers of the groups change, as schedules do it.

    Attributes:
        factors: steps, with what a group's first numbers are multiplied by before them.
        is_by_group: the second group's numbers are others than the first one's.
    """

    factors: Mapping[int, float]
    is_by_group: bool = False


class Side:
    """One optimizer with its parameters, which get gradients at their own values."""

    def __init__(
        self,
        cls: Any,
        options: Mapping[str, Any],
        shapes: Sequence[tuple[int, ...]],
        *,
        is_wide: bool = False,
        is_split: bool = False,
        are_two: bool = False,
        dtype: torch.dtype = torch.float64,
        keys: Mapping[str, str] | None = None,
    ) -> None:
        generator = torch.Generator().manual_seed(7)
        self.params = [
            torch.nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=generator))
            for shape in shapes
        ]
        self.targets = [
            torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes
        ]
        for p in self.params:
            p.data = p.data.to(dtype)
        self.is_wide = is_wide
        self.keys = keys or {}
        self.replaced: set[torch.dtype] = set()
        """The shorter dtypes that steps without roundings met."""
        with precision(is_wide=is_wide):
            self.optimizer = cls(groups_of(self.params, is_split, are_two=are_two), **options)
        self.first = [dict(group) for group in self.optimizer.param_groups]
        """The groups as the constructor made them."""
        self.num_evaluations = 0

    def step(self, number: int, scale: float = 1.0, *, without: slice | None = None) -> None:
        """Take a step on a smooth function of each parameter, with noise, times `scale`.

        `without`: these parameters get no gradients.
        """
        self._evaluate(number, scale)
        for p in self.params[without] if without else ():
            p.grad = None
        with torch.no_grad(), precision(is_wide=self.is_wide) as seen:
            self.optimizer.step()
        self.replaced |= seen

    def step_with_closure(self, number: int) -> None:
        """Take a step with a closure, which computes the gradients and returns a loss."""

        def closure() -> Tensor:
            self.num_evaluations += 1
            return self._evaluate(number, 1.0)

        with torch.no_grad(), precision(is_wide=self.is_wide):
            self.optimizer.step(closure)

    @torch.no_grad()
    def _evaluate(self, number: int, scale: float) -> Tensor:
        """Compute the gradients at the parameters, and return a number that depends on them."""
        generator = torch.Generator().manual_seed(number)
        loss = torch.ones((), dtype=torch.float64)
        for p, target in zip(self.params, self.targets, strict=True):
            noise = torch.randn(p.shape, dtype=torch.float64, generator=generator)
            at = p.detach().double()
            grad = 0.3 * (at - target) + 0.1 * torch.sin(at) + 0.2 * noise
            p.grad = (scale * grad).to(p.dtype)
            loss += 0.5 * (at - target).square().sum()
        return loss

    def schedule(self, names: AbstractSet[str], course: Course, number: int) -> None:
        """Change numbers of the groups before a step: tuples by a fifth of what others change."""
        if number not in course.factors:
            return
        for n, (group, first) in enumerate(
            zip(self.optimizer.param_groups, self.first, strict=True)
        ):
            factor = course.factors[number] * (0.7 if n and course.is_by_group else 1.0)
            of_tuple = 0.8 + 0.2 * factor
            for name in names & group.keys():
                x = first[name]
                if name == "lr" and not x:
                    x = 0.1  # a rate that is warmed up
                group[name] = tuple(of_tuple * e for e in x) if isinstance(x, tuple) else factor * x

    def tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """Yield the parameters and their states: the key or "", words, the numbers."""
        for n, p in enumerate(self.params):
            yield "", f"parameter {tuple(p.shape)}", p.detach()
            for key, x in self.optimizer.state[p].items():
                key = self.keys.get(key, key)
                what = f"state {key} of number {n}, {tuple(p.shape)}"
                if isinstance(x, Tensor):
                    yield key, what, x.detach()
                elif isinstance(x, int | float) and not isinstance(x, bool):
                    yield key, what, torch.tensor(x, dtype=torch.float64)


def original_of(
    subject: Subject,
    setting: Mapping[str, Any],
    shapes: Sequence[tuple[int, ...]],
    dtype: torch.dtype = torch.float64,
    *,
    are_two: bool = False,
) -> Side:
    """Return a side with the original class. In float32 it has its roundings."""
    options = {**subject.settings, **setting}
    return Side(
        subject.cls,
        options,
        shapes,
        is_wide=subject.is_wide and dtype is torch.float64,
        is_split=subject.is_split,
        are_two=are_two or subject.reduces_all,
        dtype=dtype,
    )


def ours_of(
    subject: Subject,
    ours: Any,
    setting: Mapping[str, Any],
    shapes: Sequence[tuple[int, ...]],
    dtype: torch.dtype = torch.float64,
    *,
    are_two: bool = False,
) -> Side:
    """Return a side with the imported class. What its arguments lack of a setting is left out."""
    known = {k: v for k, v in setting.items() if k in inspect.signature(ours).parameters}
    keys = {subject.key(key): key for key in subject.state_keys}
    two = are_two or subject.reduces_all
    return Side(ours, known, shapes, are_two=two, dtype=dtype, keys=keys)


def with_first(subject: Subject, setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return a setting with the numbers that the original's constructor keeps."""
    defaults = {a.name: a.default for a in subject.arguments}
    first = {first_argument(name): setting.get(name, defaults[name]) for name in subject.own}
    return {**first, **setting}


def error_between(a: Tensor, b: Tensor) -> float:
    """Return the largest difference of an element, relative to the largest magnitude of `b`."""
    if a.numel() != b.numel():
        return float("inf")
    a, b = a.reshape(-1).double(), b.reshape(-1).double()
    if a.numel() == 0 or bool((a.isnan() & b.isnan()).all()):
        return 0.0
    return float((a - b).abs().max()) / max(float(b.abs().max()), 1e-30)
