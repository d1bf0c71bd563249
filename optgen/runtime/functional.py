"""The functional forms of torch.optim: one step on lists of tensors, without an optimizer.

A form is declared by its signature, which is torch's, and by nothing else: the step is the class's.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from optgen.runtime import dispatch
from optgen.runtime.batch.dispatch_key import OPTIONS
from optgen.runtime.optimizer import GeneratedOptimizer
from optgen.runtime.torch_private import capturing, outside_dynamo

F = TypeVar("F", bound=Callable[..., None])
Arguments = Mapping[str, Any]

_SCALER = ("grad_scale", "found_inf")
_IGNORED = ("has_complex", "has_sparse_grad")  # the tensors tell


def functional(kind: type[GeneratedOptimizer], **named: str | tuple[str, ...]) -> Callable[[F], F]:
    """Make a function that has a signature and no body take one step by the rule of a class.

    Its first two arguments are the parameters and their gradients. A list of states is found under
    the state's key and an s, a hyperparameter under its name; `named` says what torch calls
    something else, and how it spells out a tuple: `betas=("beta1", "beta2")`. What it leaves out
    has the default of the class.
    """

    def fill(declared: F) -> F:
        signature = inspect.signature(declared)
        form = _Form(kind, tuple(signature.parameters), named)

        @wraps(declared)
        def take_step(*args: Any, **kwargs: Any) -> None:
            declared(*args, **kwargs)  # Python's own error for arguments that do not fit
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            form.step(bound.arguments)

        return cast(F, outside_dynamo(take_step))

    return fill


@dataclass(frozen=True)
class _Form:
    """What the arguments of a functional form are to a rule."""

    kind: type[GeneratedOptimizer]
    arguments: tuple[str, ...]
    named: Mapping[str, str | tuple[str, ...]]

    def __post_init__(self) -> None:
        """A name that is neither torch's nor ours would be ignored in silence."""
        numbers = [self.named.get(key, key) for key in self.kind.rule.hypers]
        spelt = [name for n in numbers for name in ((n,) if isinstance(n, str) else n)]
        known = {*self.arguments[:2], *self.lists.values(), *spelt, "state_steps"}
        unknown = set(self.arguments) - known - {*OPTIONS, *_SCALER, *_IGNORED}
        missing = set(self.lists.values()) - set(self.arguments)
        if unknown or missing:
            raise TypeError(
                f"{self.kind.__name__}: {sorted(unknown)} unknown, {sorted(missing)} missing"
            )

    @cached_property
    def lists(self) -> dict[str, str]:
        """The argument that holds a state, by the state's key."""
        keys = [state.key for state in self.kind.rule.states]
        return {key: str(self.named.get(key, f"{key}s")) for key in keys}

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """What the class gives a group, whatever the form leaves out."""
        known = inspect.signature(self.kind).parameters.values()
        return {a.name: a.default for a in known if a.name != "params"} | dict(self.kind.rule.fixed)

    def step(self, given: Arguments) -> None:
        """Take one step of the given tensors."""
        params, grads = (given[name] for name in self.arguments[:2])
        if others := {type(param).__name__ for param in params if not isinstance(param, Tensor)}:
            raise TypeError(f"can only optimize Tensors, but one of the params is {min(others)}")
        group = {**self.defaults, **dict(self._hypers(given)), "params": tuple(params)}
        group |= {key: given.get(key) for key in OPTIONS}
        if group["differentiable"] and group["fused"]:
            raise RuntimeError("`fused` does not support `differentiable`")
        if "differentiable" not in given:  # torch's then leaves it to whether autograd records
            group["differentiable"] = torch.is_grad_enabled() and _requires_grad(given)
        lists = {key: given[name] for key, name in self.lists.items()}
        self._check(group, lists)
        optimizer = _stateless(self.kind, group)
        optimizer.state.update(zip(params, self._states(given, lists, len(params)), strict=True))
        if len(optimizer.state) != len(params):
            raise ValueError("a parameter stands in the list more than once: take a step for each")
        for key in _SCALER:
            if given.get(key) is not None:
                setattr(optimizer, key, given[key])
        with nullcontext() if group["differentiable"] else torch.no_grad():
            dispatch.step(optimizer, grads)
        if self.kind.rule.step == "tensor":
            lists["step"] = given["state_steps"]
        for index, values in enumerate(optimizer.state.values()):
            _return_state(values, lists, index)

    def _hypers(self, given: Arguments) -> Iterator[tuple[str, Any]]:
        for key in self.kind.rule.hypers:
            name = self.named.get(key, key)
            if not isinstance(name, str):
                yield key, tuple(given[item] for item in name)
            elif name in given:
                yield key, given[name]

    def _check(self, group: dict[str, Any], lists: Mapping[str, list[Any]]) -> None:
        for state in self.kind.rule.states:
            count = len(lists[state.key])
            if count != len(group["params"]) and (count or state.present(group)):
                raise ValueError(
                    f"`{self.lists[state.key]}` has {count} entries for "
                    f"{len(group['params'])} parameters"
                )

    def _states(
        self, given: Arguments, lists: Mapping[str, list[Any]], count: int
    ) -> Iterator[dict[str, Any]]:
        """Each parameter's state, without the entries that are None: the step creates those."""
        for index in range(count):
            values = {key: column[index] for key, column in lists.items() if column}
            if self.kind.rule.step is not None:
                step = given["state_steps"][index]
                # A count that is no tensor cannot be advanced in place: its caller has done it.
                values["step"] = step - 1 if self.kind.rule.step == "int" else step
            yield {key: value for key, value in values.items() if value is not None}


_captured: list[GeneratedOptimizer] = []
"""A graph that was captured reads its tables at every replay, and nobody tells when it is gone."""


def _stateless(kind: type[GeneratedOptimizer], group: dict[str, Any]) -> GeneratedOptimizer:
    """An optimizer for one step: no hook, no profiler and no framework can know of it."""
    optimizer = kind.__new__(kind)
    optimizer._reset_context()
    optimizer.defaults, optimizer.param_groups, optimizer.state = group, [group], defaultdict(dict)
    if capturing():
        _captured.append(optimizer)
    return optimizer


def _requires_grad(given: Arguments) -> bool:
    flat = [item for v in given.values() for item in (v if isinstance(v, list | tuple) else (v,))]
    return any(isinstance(item, Tensor) and item.requires_grad for item in flat)


def _return_state(values: dict[str, Any], lists: Mapping[str, list[Any]], index: int) -> None:
    """Put a state that the step created into its list, or one that it moved where it was."""
    for key, column in lists.items():
        value = values.get(key)
        if value is None or not column or value is column[index]:
            continue
        if column[index] is None or column[index].layout != value.layout:
            column[index] = value
        else:
            column[index].copy_(value)
