"""The functions of generated for-loop and foreach modules, and the hyperparameters they take."""

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.protocols import Group
from optgen.runtime.rule import Rule, number

Function: TypeAlias = Callable[..., Any]


@cache
def load(package: str, module: str, function: str) -> Function:
    """Import one function of a generated lowering."""
    loaded: Function = getattr(importlib.import_module(f"{package}.{module}"), function)
    return loaded


@cache
def find(package: str, module: str, function: str) -> Function | None:
    """Import one function of a generated lowering; return None if the rule needs none."""
    has = hasattr(importlib.import_module(f"{package}.{module}"), function)
    return load(package, module, function) if has else None


def named(function: str, rule: Rule, batch: Batch) -> str:
    """A function's name: one rule has several where parameters of different shapes differ in it."""
    answers = zip(rule.facts, batch.dispatch_key.facts, strict=True)
    return "_".join([function, *(fact if holds else f"not_{fact}" for fact, holds in answers)])


def hypers(rule: Rule, group: Group, functional: bool, lowering: str) -> dict[str, Any]:
    """The hyperparameters as the lowering takes them.

    Tensors reach autograd and graph capture as they are. Else they are numbers, but a learning rate
    in the for-loop: torch's computes the step size in the dtype of that tensor.
    """
    taken: dict[str, Any] = {}
    for key, value in zip(rule.hypers, rule.values(group), strict=True):
        if isinstance(value, (tuple, list)):
            taken[key] = tuple(map(_scalar_tensor if functional else number, value))
        elif functional:
            taken[key] = _scalar_tensor(value)
        elif lowering == "forloop" and key in rule.tensor_hypers and isinstance(value, Tensor):
            taken[key] = _scalar_tensor(value.detach())
        else:
            taken[key] = number(value)
    return taken


def _scalar_tensor(value: Any) -> Any:
    return value.squeeze() if isinstance(value, Tensor) and value.dim() else value
