"""Functional forms of torch.optim: one step on lists of tensors, without an optimizer.

This is the mirror of torch.optim.functional, with every form. A form declares only its signature,
which is torch's. Its step is the step of a generated class.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import chain
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from optgen.runtime import take_step
from optgen.runtime.batch.batch import OPTIONS
from optgen.runtime.optimizer import GeneratedOptimizer
from optgen.runtime.torch_private import capturing, outside_dynamo

F = TypeVar("F", bound=Callable[..., None])
Arguments = Mapping[str, Any]

_SCALER_NAMES = ("grad_scale", "found_inf")
_IGNORED_NAMES = (
    "has_complex",
    "has_sparse_grad",
)  # arguments of torch's functions; here the tensors themselves tell


def functional(
    optimizer_class: type[GeneratedOptimizer], **argument_names: str | tuple[str, ...]
) -> Callable[[F], F]:
    """Decorate a function that has a signature and no body: it then takes a step as a class does.

    The first two arguments of the function are the parameters and their gradients. An argument for
    a list of states has the name of the state's key plus "s". An argument for a hyperparameter has
    the hyperparameter's name. A hyperparameter without an argument has the default of the class.

    Args:
        optimizer_class: the class whose rule the step follows.
        argument_names: the names of arguments that are named otherwise, by the key of the state or
            hyperparameter. A
            tuple of names stands for a hyperparameter with several numbers:
            `betas=("beta1", "beta2")`.
    """

    def decorate(declared: F) -> F:
        signature = inspect.signature(declared)
        form = _Form(optimizer_class, tuple(signature.parameters), argument_names)

        @wraps(declared)
        def form_step(*args: Any, **kwargs: Any) -> None:
            declared(*args, **kwargs)  # raises Python's error for wrong arguments
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            form.step(bound.arguments)

        return cast(F, outside_dynamo(form_step))

    return decorate


@dataclass(frozen=True)
class _Form:
    """The mapping of a functional form's arguments to a rule's states and hyperparameters."""

    optimizer_class: type[GeneratedOptimizer]
    signature_names: tuple[str, ...]  # the names of all arguments, in order
    argument_names: Mapping[str, str | tuple[str, ...]]  # see `functional`

    def __post_init__(self) -> None:
        """Raise a TypeError for unknown and missing names, which would be ignored otherwise."""
        hypers = [self.argument_names.get(key, key) for key in self.optimizer_class.rule.hypers]
        hyper_names = [
            name for names in hypers for name in ((names,) if isinstance(names, str) else names)
        ]
        known = {*self.signature_names[:2], *self.list_names.values(), *hyper_names, "state_steps"}
        unknown = set(self.signature_names) - known - {*OPTIONS, *_SCALER_NAMES, *_IGNORED_NAMES}
        missing = set(self.list_names.values()) - set(self.signature_names)
        if unknown or missing:
            raise TypeError(
                f"{self.optimizer_class.__name__}: {sorted(unknown)} unknown, "
                f"{sorted(missing)} missing"
            )

    @cached_property
    def list_names(self) -> dict[str, str]:
        """Return the name of each state's argument, by the state's key."""
        keys = [state.key for state in self.optimizer_class.rule.states]
        return {key: str(self.argument_names.get(key, f"{key}s")) for key in keys}

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Return the class's default values of a group."""
        arguments = inspect.signature(self.optimizer_class).parameters.values()
        values = {a.name: a.default for a in arguments if a.name != "params"}
        return values | dict(self.optimizer_class.rule.fixed)

    def step(self, arguments: Arguments) -> None:
        """Take one step with the given arguments."""
        params, grads = (arguments[name] for name in self.signature_names[:2])
        if classes := {type(param).__name__ for param in params if not isinstance(param, Tensor)}:
            raise TypeError(f"can only optimize Tensors, but one of the params is {min(classes)}")
        group = {**self.defaults, **dict(self._hypers(arguments)), "params": tuple(params)}
        group |= {key: arguments.get(key) for key in OPTIONS}
        if group["differentiable"] and group["fused"]:
            raise RuntimeError("`fused` does not support `differentiable`")
        if "differentiable" not in arguments:  # torch then follows autograd's mode
            group["differentiable"] = torch.is_grad_enabled() and _requires_grad(arguments)
        lists = {key: arguments[name] for key, name in self.list_names.items()}
        self._check_lengths(group, lists)
        optimizer = _make_optimizer(self.optimizer_class, group)
        states = self._states(arguments, lists, len(params))
        optimizer.state.update(zip(params, states, strict=True))
        if len(optimizer.state) != len(params):
            raise ValueError(
                "a parameter stands in the list several times: call the function once for each time"
            )
        for key in _SCALER_NAMES:
            if arguments.get(key) is not None:
                setattr(optimizer, key, arguments[key])
        with nullcontext() if group["differentiable"] else torch.no_grad():
            take_step.step(optimizer, grads)
        if self.optimizer_class.rule.step == "tensor":
            lists["step"] = arguments["state_steps"]
        for index, values in enumerate(optimizer.state.values()):
            _return_state(values, lists, index)

    def _hypers(self, arguments: Arguments) -> Iterator[tuple[str, Any]]:
        """Yield the keys and values of the hyperparameters that have arguments."""
        for key in self.optimizer_class.rule.hypers:
            name = self.argument_names.get(key, key)
            if not isinstance(name, str):
                yield key, tuple(arguments[item] for item in name)
            elif name in arguments:
                yield key, arguments[name]

    def _check_lengths(self, group: dict[str, Any], lists: Mapping[str, list[Any]]) -> None:
        """Raise a ValueError for a list of states without an entry for each parameter."""
        for state in self.optimizer_class.rule.states:
            count = len(lists[state.key])
            if count != len(group["params"]) and (count or state.is_present(group)):
                raise ValueError(
                    f"`{self.list_names[state.key]}` has {count} entries for "
                    f"{len(group['params'])} parameters"
                )

    def _states(
        self, arguments: Arguments, lists: Mapping[str, list[Any]], param_count: int
    ) -> Iterator[dict[str, Any]]:
        """Yield each parameter's state; entries that are None are left for the step to create."""
        for index in range(param_count):
            param_states = {key: column[index] for key, column in lists.items() if column}
            if self.optimizer_class.rule.step is not None:
                step = arguments["state_steps"][index]
                # An int cannot be advanced in place, so the caller has added 1 for this step.
                param_states["step"] = step - 1 if self.optimizer_class.rule.step == "int" else step
            yield {key: value for key, value in param_states.items() if value is not None}


_captured_optimizers: list[GeneratedOptimizer] = []
"""Optimizers of captured steps; kept forever, since graphs read their tables at every replay."""


def _make_optimizer(
    optimizer_class: type[GeneratedOptimizer], group: dict[str, Any]
) -> GeneratedOptimizer:
    """Make an optimizer for one step, which no hook, profiler or framework sees."""
    optimizer = optimizer_class.__new__(optimizer_class)
    optimizer._reset_context()
    optimizer.defaults, optimizer.param_groups, optimizer.state = group, [group], defaultdict(dict)
    if capturing():
        _captured_optimizers.append(optimizer)
    return optimizer


def _requires_grad(arguments: Arguments) -> bool:
    lists = (value if isinstance(value, list | tuple) else (value,) for value in arguments.values())
    return any(isinstance(item, Tensor) and item.requires_grad for item in chain(*lists))


def _return_state(values: dict[str, Any], lists: Mapping[str, list[Any]], index: int) -> None:
    """Put the states of one parameter that the step created or replaced into the caller's lists.

    A tensor that a list already holds is overwritten in place, unless its layout differs.
    """
    for key, column in lists.items():
        value = values.get(key)
        if value is None or not column or value is column[index]:
            continue
        if column[index] is None or column[index].layout != value.layout:
            column[index] = value
        else:
            column[index].copy_(value)


# The forms import `functional` from this module, so they are imported last.
from optgen.optim._adafactor import adafactor
from optgen.optim._muon import muon
from optgen.optim.adadelta import adadelta
from optgen.optim.adagrad import adagrad
from optgen.optim.adam import adam
from optgen.optim.adamax import adamax
from optgen.optim.adamw import adamw
from optgen.optim.asgd import asgd
from optgen.optim.nadam import nadam
from optgen.optim.radam import radam
from optgen.optim.rmsprop import rmsprop
from optgen.optim.rprop import rprop
from optgen.optim.sgd import sgd
from optgen.optim.sparse_adam import sparse_adam

__all__ = [
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "asgd",
    "muon",
    "nadam",
    "radam",
    "rmsprop",
    "rprop",
    "sgd",
    "sparse_adam",
]
