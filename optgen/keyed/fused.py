"""Optimizers whose update happens in the backward pass, and the modules that have them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.optim import Optimizer

from optgen.keyed.combined import CombinedOptimizer
from optgen.keyed.keyed_optimizer import KeyedOptimizer
from optgen.keyed.wrappers import WrapperBase


class FusedOptimizer(KeyedOptimizer, ABC):
    """A keyed optimizer whose update happens in the backward pass: `step` updates nothing.

    A subclass has `step`, which lets the next pass know of new hyperparameters if it has to be
    told, and `zero_grad`.
    """

    @abstractmethod
    def step(self, closure: Any = None) -> Any:
        """End an iteration."""

    @abstractmethod
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset what gradients there are."""

    def __repr__(self) -> str:
        return Optimizer.__repr__(self)


class EmptyFusedOptimizer(FusedOptimizer):
    """The optimizer of a module without parameters: it has no state and does nothing."""

    def __init__(self) -> None:
        super().__init__({}, {}, [])

    def step(self, closure: Any = None) -> Any:
        """Return the closure's loss; without one, do nothing."""
        return None if closure is None else closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing."""


class FusedOptimizerModule(ABC):
    """What a module is too whose parameters are updated while gradients are computed."""

    @property
    @abstractmethod
    def fused_optimizer(self) -> KeyedOptimizer:
        """The optimizer that updates them; names of parameters are those of the module."""


def fused_optimizer_of(module: nn.Module) -> CombinedOptimizer:
    """The fused optimizers of a module tree as one, each under its module's path.

    What stands below a `FusedOptimizerModule` is its own business. A module that is reached by two
    paths has the first one's key.

    Args:
        module: The root; it may be a `FusedOptimizerModule` itself, then without a key.
    """
    return CombinedOptimizer(list(_found(module, "", set())))


def _found(
    module: nn.Module, path: str, seen: set[nn.Module]
) -> Iterator[tuple[str, KeyedOptimizer]]:
    if module in seen:
        return
    seen.add(module)
    if isinstance(module, FusedOptimizerModule):
        yield path, module.fused_optimizer
        return
    for name, child in module.named_children():
        yield from _found(child, f"{path}.{name}" if path else name, seen)


def updates_in_backward(optimizer: Optimizer) -> bool:
    """Tell whether this optimizer, or one within it, has used up gradients before a step."""
    if isinstance(optimizer, CombinedOptimizer):
        return any(updates_in_backward(member) for _, member in optimizer.optimizers)
    if isinstance(optimizer, WrapperBase):
        return updates_in_backward(optimizer._optimizer)
    return isinstance(optimizer, FusedOptimizer) and bool(optimizer.params)
