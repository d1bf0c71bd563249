"""Define the variants of a step: our class, torch's in each of its forms, the memory limit."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, prod
from typing import Any, Protocol

import torch
from torch import Tensor

import optgen.optim
from optgen.bench.memory_traffic import Traffic
from optgen.bench.roofline import Roofline
from optgen.bench.tensor_lists import TensorList
from optgen.runtime import GeneratedOptimizer

OURS, LIMIT = "optgen", "limit"
DEFAULT, FOREACH, FUSED = "torch for-loop", "torch foreach", "torch fused"
FORMS: dict[str, dict[str, Any]] = {
    OURS: {},
    DEFAULT: {"foreach": False},  # torch's choice on a CPU
    FOREACH: {"foreach": True},
    FUSED: {"fused": True},
}
UNFUSED: dict[str, dict[str, Any]] = {
    "optgen for-loop": {"foreach": False},
    "optgen foreach": {"foreach": True},
}
_RANDOM_NUMBERS = 1 << 18  # how many are drawn; larger tensors repeat them
SETTINGS: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}}
"""Constructor arguments of a class, for every form."""


USER_CLASSES: dict[str, Any] = {}
"""Classes of the user's own spec files, by name."""


def class_of(name: str) -> Any:
    """Return the class with a name, from the user's spec files or from optgen.optim."""
    return USER_CLASSES.get(name) or getattr(optgen.optim, name)


def _takes_dense_gradients(cls: object) -> bool:
    if not isinstance(cls, type) or not issubclass(cls, GeneratedOptimizer):
        return False
    return cls.rule.gradient != "sparse_only"


CLASSES = tuple(n for n in optgen.optim.__all__ if _takes_dense_gradients(class_of(n)))
"""Every generated class that takes dense gradients. New algorithms are included."""
FACTORED = tuple(n for n in CLASSES if any(s.shape == "row" for s in class_of(n).rule.states))
"""The classes whose rule has row and column states."""


class Variant(Protocol):
    """Object that takes steps with the gradients it was given last."""

    def set_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Let further steps use these gradients."""

    def step(self) -> object:
        """Take a step."""


class Stepper:
    """An optimizer with its own parameters; all variants share the gradients."""

    def __init__(self, name: str, title: str, tensors: TensorList, dtype: torch.dtype) -> None:
        self.params = parameters(tensors, dtype)
        self.optimizer = make_optimizer(
            name, title, param_groups(name, self.params, tensors.groups)
        )
        self.step: Callable[[], Any] = self.optimizer.step

    def set_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Let further steps use these gradients."""
        for param, gradient in zip(self.params, gradients, strict=True):
            param.grad = gradient


class MemoryLimit:
    """The memory limit, on the tensors of an optimizer that has taken a step."""

    def __init__(self, traffics: Sequence[Traffic], stepper: Stepper) -> None:
        self._stepper = stepper
        self.roofline = Roofline(traffics, stepper.optimizer)
        self.step = self.roofline.step

    def set_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Let further steps read these gradients."""
        self._stepper.set_gradients(gradients)
        self.roofline.update_gradient_addresses()


def make_optimizer(name: str, title: str, params: Any) -> torch.optim.Optimizer:
    """Make an optimizer of a class in one of its forms, a key of `FORMS` or `UNFUSED`."""
    cls: Any = class_of(name) if title.startswith(OURS) else getattr(torch.optim, name)
    flags = (FORMS | UNFUSED)[title]
    # A True flag is passed to a class without that argument, too: by the TypeError, `forms` learns
    # that the class lacks the form.
    options = {key: value for key, value in flags.items() if value or key in _arguments(cls)}
    settings = SETTINGS.get(name, {})
    options |= {key: value for key, value in settings.items() if key in _arguments(cls)}
    optimizer: torch.optim.Optimizer = cls(params, **options)
    return optimizer


def forms(name: str, dtype: torch.dtype, *, unfused: bool = False) -> list[str]:
    """Return the titles of the forms that exist for a class. Some classes of torch lack a form."""
    return [
        each for each in (FORMS | UNFUSED if unfused else FORMS) if _has_form(name, each, dtype)
    ]


def _has_form(name: str, title: str, dtype: torch.dtype) -> bool:
    if title == OURS:
        return True
    param = torch.ones(2, 2, dtype=dtype, requires_grad=True)
    param.grad = torch.ones_like(param)
    try:
        make_optimizer(name, title, [param]).step()
    except (AttributeError, TypeError, RuntimeError):
        return False
    return True


def _arguments(cls: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(cls).parameters


def parameters(tensors: TensorList, dtype: torch.dtype) -> list[Tensor]:
    """Return parameters for a list, with the same values every time."""
    return [each.requires_grad_() for each in _random_tensors(tensors, dtype, seed=0)]


def gradients(tensors: TensorList, dtype: torch.dtype) -> list[Tensor]:
    """Return gradients for a list, with the same values every time."""
    return list(_random_tensors(tensors, dtype, seed=1))


def gradient_copier(tensors: TensorList, dtype: torch.dtype) -> Callable[[], list[Tensor]]:
    """Return a function that copies the gradients of a list to new addresses at each call."""
    originals = gradients(tensors, dtype)
    return lambda: [gradient.clone() for gradient in originals]


def _random_tensors(tensors: TensorList, dtype: torch.dtype, seed: int) -> Iterator[Tensor]:
    """Yield random tensors. Large ones repeat their values, because drawing all takes seconds."""
    numbers = (
        torch.randn(_RANDOM_NUMBERS, generator=torch.Generator().manual_seed(seed))
        .to(dtype)
        .repeat(2)
    )
    for index, shape in enumerate(tensors.shapes):
        count, first = (
            prod(shape),
            index * 251 % _RANDOM_NUMBERS,
        )  # tensors begin at different numbers
        chunk = numbers[first : first + min(count, _RANDOM_NUMBERS)]
        yield chunk.repeat(ceil(count / _RANDOM_NUMBERS))[:count].view(shape)


def param_groups(name: str, params: Sequence[Tensor], groups: int) -> Any:
    """Return parameters as a constructor takes them; if in several groups, with different rates."""
    if groups == 1:
        return list(params)
    lr = _arguments(class_of(name)).get("lr")
    size = ceil(len(params) / groups)
    rates = [{"lr": float(lr.default) * (1 + i / groups)} if lr else {} for i in range(groups)]
    return [
        {"params": list(params[i * size : (i + 1) * size]), **rate} for i, rate in enumerate(rates)
    ]


def accepted_tensors(name: str, tensors: TensorList) -> TensorList:
    """Return the list of the tensors that a class accepts; some classes accept matrices only."""
    cls, accepted = class_of(name), set()
    for shape in dict.fromkeys(tensors.shapes):
        try:
            cls([torch.empty(shape, device="meta", requires_grad=True)])
        except ValueError:
            continue
        accepted.add(shape)
    shapes = [shape for shape in tensors.shapes if shape in accepted]
    return TensorList(tensors.name, tensors.title, shapes, tensors.groups)


def variants(
    name: str,
    tensors: TensorList,
    dtype: torch.dtype,
    traffics: Sequence[Traffic] | None,
    titles: Sequence[str],
) -> Iterator[tuple[str, Variant]]:
    """Yield pairs of a title and a variant. The memory limit comes after our class."""
    for title in titles:
        stepper = Stepper(name, title, tensors, dtype)
        yield title, stepper
        if title == OURS and traffics is not None:
            stepper.set_gradients(gradients(tensors, dtype))
            stepper.step()  # creates the states that the limit reads
            yield LIMIT, MemoryLimit(traffics, stepper)
