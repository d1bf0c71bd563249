"""Define the variants of a step: our class, torch's class in each form, and the memory limit.

A form is a way to run a class: for-loop, foreach or fused. A title names a variant.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, prod
from typing import Any, Protocol

import torch
from torch import Tensor

import optgen.optim
from optgen.bench.roofline import Roofline, Traffic
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
_NUM_DRAWN = 1 << 18  # random numbers; larger tensors repeat them
_FIRST_NUMBER_STRIDE = 251  # a prime, so that tensors begin at different numbers
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

    def __init__(self, name: str, title: str, tensor_list: TensorList, dtype: torch.dtype) -> None:
        self.params = parameters(tensor_list, dtype)
        self.optimizer = make_optimizer(
            name, title, param_groups(name, self.params, tensor_list.num_groups)
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


def parameters(tensor_list: TensorList, dtype: torch.dtype) -> list[Tensor]:
    """Return parameters for a list, with the same values every time."""
    return [each.requires_grad_() for each in _random_tensors(tensor_list, dtype, seed=0)]


def gradients(tensor_list: TensorList, dtype: torch.dtype) -> list[Tensor]:
    """Return gradients for a list, with the same values every time."""
    return list(_random_tensors(tensor_list, dtype, seed=1))


def gradient_copier(tensor_list: TensorList, dtype: torch.dtype) -> Callable[[], list[Tensor]]:
    """Return a function that copies the gradients of a list to new addresses at each call."""
    originals = gradients(tensor_list, dtype)
    return lambda: [gradient.clone() for gradient in originals]


def _random_tensors(tensor_list: TensorList, dtype: torch.dtype, seed: int) -> Iterator[Tensor]:
    """Yield random tensors. Large ones repeat their values, because drawing all takes seconds."""
    numbers = (
        torch.randn(_NUM_DRAWN, generator=torch.Generator().manual_seed(seed)).to(dtype).repeat(2)
    )
    for index, shape in enumerate(tensor_list.shapes):
        count, first = prod(shape), index * _FIRST_NUMBER_STRIDE % _NUM_DRAWN
        chunk = numbers[first : first + min(count, _NUM_DRAWN)]
        yield chunk.repeat(ceil(count / _NUM_DRAWN))[:count].view(shape)


def param_groups(name: str, params: Sequence[Tensor], num_groups: int) -> Any:
    """Return the first argument of a constructor: the parameters, or groups of different rates."""
    if num_groups == 1:
        return list(params)
    lr = _arguments(class_of(name)).get("lr")
    size = ceil(len(params) / num_groups)
    rates = [
        {"lr": float(lr.default) * (1 + i / num_groups)} if lr else {} for i in range(num_groups)
    ]
    return [
        {"params": list(params[i * size : (i + 1) * size]), **rate} for i, rate in enumerate(rates)
    ]


def accepted_tensors(name: str, tensor_list: TensorList) -> TensorList:
    """Return a list without the tensors that a class refuses. Some classes take matrices only."""
    cls, accepted = class_of(name), set()
    for shape in dict.fromkeys(tensor_list.shapes):
        try:
            cls([torch.empty(shape, device="meta", requires_grad=True)])
        except ValueError:
            continue
        accepted.add(shape)
    shapes = [shape for shape in tensor_list.shapes if shape in accepted]
    return TensorList(tensor_list.name, tensor_list.title, shapes, tensor_list.num_groups)


def variants(
    name: str,
    tensor_list: TensorList,
    dtype: torch.dtype,
    traffics: Sequence[Traffic] | None,
    titles: Sequence[str],
) -> Iterator[tuple[str, Variant]]:
    """Yield pairs of a title and a variant. The memory limit comes after our class."""
    for title in titles:
        stepper = Stepper(name, title, tensor_list, dtype)
        yield title, stepper
        if title == OURS and traffics is not None:
            stepper.set_gradients(gradients(tensor_list, dtype))
            stepper.step()  # creates the states that the limit reads
            yield LIMIT, MemoryLimit(traffics, stepper)
