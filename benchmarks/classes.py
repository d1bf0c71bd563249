"""Which classes there are to measure, and what the mirrored one of torch is called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from optgen.bench.variants import CLASSES, generated

__all__ = ["CLASSES", "accepted", "accepts", "generated", "reference"]


def reference(name: str) -> Callable[..., torch.optim.Optimizer]:
    """torch's class of this name, to run one parameter at a time where it has a choice."""
    kind = getattr(torch.optim, name)
    return partial(kind, foreach=False) if accepts(kind, "foreach") else kind


def accepts(kind: Any, argument: str) -> bool:
    """Whether a class's constructor has this argument."""
    return argument in inspect.signature(kind).parameters


def accepted(kind: Any, params: Sequence[Tensor]) -> list[Tensor]:
    """The parameters that a class may be made of: some take matrices only."""
    found = []
    for param in params:
        try:
            kind([param])
        except ValueError:
            continue
        found.append(param)
    return found
