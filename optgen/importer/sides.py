"""Both sides of a proof: the original and the imported class, each with parameters of its own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch import Tensor

from optgen.importer.counts import groups_of
from optgen.importer.precision import precision
from optgen.importer.run import Subject, first_argument


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

    def step(self, number: int, scale: float = 1.0) -> None:
        """Take a step on a smooth function of each parameter, with noise, times `scale`."""
        generator = torch.Generator().manual_seed(number)
        for p, target in zip(self.params, self.targets, strict=True):
            noise = torch.randn(p.shape, dtype=torch.float64, generator=generator)
            at = p.detach().double()
            grad = 0.3 * (at - target) + 0.1 * torch.sin(at) + 0.2 * noise
            p.grad = (scale * grad).to(p.dtype)
        with torch.no_grad(), precision(is_wide=self.is_wide) as seen:
            self.optimizer.step()
        self.replaced |= seen

    def schedule(self, names: AbstractSet[str]) -> None:
        """Make numbers of the groups smaller: rates and sums by half, tuples by a tenth."""
        for group in self.optimizer.param_groups:
            for name in names & group.keys():
                x = group[name]
                group[name] = tuple(0.9 * each for each in x) if isinstance(x, tuple) else 0.5 * x

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
) -> Side:
    """Return a side with the original class. In float32 it has its roundings."""
    options = {**subject.settings, **setting}
    return Side(
        subject.cls,
        options,
        shapes,
        is_wide=subject.is_wide and dtype is torch.float64,
        is_split=subject.is_split,
        are_two=subject.reduces_all,
        dtype=dtype,
    )


def ours_of(
    subject: Subject,
    ours: Any,
    setting: Mapping[str, Any],
    shapes: Sequence[tuple[int, ...]],
    dtype: torch.dtype = torch.float64,
) -> Side:
    """Return a side with the imported class. What its arguments lack of a setting is left out."""
    known = {k: v for k, v in setting.items() if k in inspect.signature(ours).parameters}
    keys = {subject.key(key): key for key in subject.state_keys}
    return Side(ours, known, shapes, are_two=subject.reduces_all, dtype=dtype, keys=keys)


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
