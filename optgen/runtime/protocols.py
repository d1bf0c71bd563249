"""Protocols of optimizers and functions, for modules that cannot import the optimizer class."""

from collections import defaultdict
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from optgen.runtime.rule import Rule

Group: TypeAlias = dict[str, Any]
"""A parameter group: its parameters under "params", and its hyperparameters and options."""


class HasLowerings(Protocol):
    """An optimizer, or a function over lists, with generated lowerings."""

    @property
    def rule(self) -> Rule:
        """Return the description of the update rule."""

    @property
    def lowerings(self) -> str:
        """Return the name of the generated package that holds the lowerings."""

    def hyper_annotations(self) -> dict[str, Any]:
        """Return the type annotations of the hyperparameters, by name."""


class OptimizerLike(HasLowerings, Protocol):
    """An optimizer with parameter groups and state, as torch lays them out."""

    param_groups: list[Group]
    state: defaultdict[Tensor, Any]
    defaults: Group
