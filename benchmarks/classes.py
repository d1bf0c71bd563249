"""Find the classes to measure, and the class of torch to compare each with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from optgen.bench.variants import CLASSES, class_of

__all__ = ["CLASSES", "accepted_parameters", "accepts_argument", "class_of", "torch_class"]


def torch_class(name: str) -> Callable[..., torch.optim.Optimizer]:
    """Return torch's class of this name, with foreach=False if it has the argument."""
    cls = getattr(torch.optim, name)
    return partial(cls, foreach=False) if accepts_argument(cls, "foreach") else cls


def accepts_argument(cls: Any, argument: str) -> bool:
    """Tell whether a class's constructor has an argument."""
    return argument in inspect.signature(cls).parameters


def accepted_parameters(cls: Any, params: Sequence[Tensor]) -> list[Tensor]:
    """Return the parameters that a class accepts; some classes accept matrices only."""
    accepted = []
    for param in params:
        try:
            cls([param])
        except ValueError:
            continue
        accepted.append(param)
    return accepted
