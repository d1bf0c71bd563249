"""What is measured side by side: our class as it comes, torch's in each of its forms, the limit."""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

import optgen.optim
from optgen.bench.ceiling import Ceiling
from optgen.bench.lists import TensorList
from optgen.bench.traffic import Traffic
from optgen.runtime import GeneratedOptimizer

OURS, LIMIT = "optgen", "limit"
TORCH: dict[str, dict[str, Any]] = {
    "torch for-loop": {"foreach": False},  # what torch's constructor takes for tensors on the CPU
    "torch foreach": {"foreach": True},
    "torch fused": {"fused": True},
}
OWN: dict[str, dict[str, Any]] = {
    "optgen for-loop": {"foreach": False},
    "optgen foreach": {"foreach": True},
}
SETTINGS: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}}


def generated(name: str) -> Any:
    """Our class of a name."""
    return getattr(optgen.optim, name)


def _takes_dense_gradients(kind: object) -> bool:
    if not isinstance(kind, type) or not issubclass(kind, GeneratedOptimizer):
        return False
    return kind.rule.gradient != "sparse_only"


CLASSES = tuple(n for n in optgen.optim.__all__ if _takes_dense_gradients(generated(n)))
"""Every generated class that steps on dense gradients: a new algorithm is measured as it lands."""


class Variant(Protocol):
    """Something that takes steps, with the gradients it was given last."""

    def take(self, gradients: Sequence[Tensor]) -> None:
        """Let further steps use these gradients."""

    def step(self) -> object:
        """Take a step."""


class Stepper:
    """An optimizer on parameters of its own; the gradients are everybody's."""

    def __init__(self, kind: Any, tensors: TensorList, dtype: torch.dtype, **options: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        self.params = [
            torch.randn(shape, generator=generator).to(dtype).requires_grad_()
            for shape in tensors.shapes
        ]
        self.optimizer = kind(grouped(kind, self.params, tensors.groups), **options)
        self.step = self.optimizer.step

    def take(self, gradients: Sequence[Tensor]) -> None:
        """Let further steps use these gradients."""
        for param, gradient in zip(self.params, gradients, strict=True):
            param.grad = gradient


class Limit:
    """The memory's limit, on the tensors of an optimizer that has taken a step."""

    def __init__(self, traffics: Sequence[Traffic], stepper: Stepper) -> None:
        self._stepper = stepper
        self.ceiling = Ceiling(traffics, stepper.optimizer)
        self.step = self.ceiling.step

    def take(self, gradients: Sequence[Tensor]) -> None:
        """Go through these gradients from now on."""
        self._stepper.take(gradients)
        self.ceiling.take_gradients()


def grouped(kind: Any, params: Sequence[Tensor], groups: int) -> Any:
    """The argument of a constructor: in groups, each has hyperparameters of its own."""
    if groups == 1:
        return list(params)
    asked = inspect.signature(kind).parameters
    lr = asked["lr"].default
    size = -(-len(params) // groups)
    return [
        {"params": list(params[i * size : (i + 1) * size]), "lr": float(lr) * (1 + i / groups)}
        for i in range(groups)
    ]


def suited(name: str, tensors: TensorList) -> TensorList:
    """The tensors that a class may be made of: some take matrices only."""
    kind, found = generated(name), []
    for shape in dict.fromkeys(tensors.shapes):
        try:
            kind([torch.empty(shape, device="meta", requires_grad=True)])
        except ValueError:
            continue
        found.append(shape)
    shapes = [shape for shape in tensors.shapes if shape in found]
    return TensorList(tensors.name, tensors.title, shapes, tensors.groups)


def variants(
    name: str,
    tensors: TensorList,
    dtype: torch.dtype,
    gradients: Sequence[Tensor],
    traffics: Sequence[Traffic] | None,
) -> Iterator[tuple[str, Variant]]:
    """Every variant of a class that there is, ready to step with these gradients."""
    settings = SETTINGS.get(name, {})
    ours = Stepper(generated(name), tensors, dtype, **settings)
    ours.take(gradients)
    ours.step()
    yield OURS, ours
    if traffics is not None:
        yield LIMIT, Limit(traffics, ours)
    kind = getattr(torch.optim, name)
    for title, flags in TORCH.items():
        known = {key: value for key, value in flags.items() if value or _accepts(kind, key)}
        try:
            theirs = Stepper(kind, tensors, dtype, **known, **settings)
            theirs.take(gradients)
            theirs.step()
        except (TypeError, RuntimeError):  # torch has no such form of this one
            continue
        yield title, theirs


def _accepts(kind: Any, argument: str) -> bool:
    return argument in inspect.signature(kind).parameters
