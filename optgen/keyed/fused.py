"""Define optimizers that update in the backward pass, and modules that have such an optimizer."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.optim import Optimizer

from optgen.keyed.keyed import CombinedOptimizer, KeyedOptimizer, WrapperBase


class FusedOptimizer(KeyedOptimizer, ABC):
    """Base of keyed optimizers that update in the backward pass: `step` updates nothing.

    A subclass defines `zero_grad` and `step`. If backward passes do not read hyperparameters from
    the groups, `step` passes changed values on to the next backward pass.
    """

    @abstractmethod
    def step(self, closure: Any = None) -> Any:
        """End an iteration."""

    @abstractmethod
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients that exist."""

    def __repr__(self) -> str:
        return Optimizer.__repr__(self)


class EmptyFusedOptimizer(FusedOptimizer):
    """The optimizer of a module without parameters: it has no state and does nothing."""

    def __init__(self) -> None:
        super().__init__({}, {}, [])

    def step(self, closure: Any = None) -> Any:
        """Return the closure's loss; without a closure, do nothing."""
        return None if closure is None else closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing."""


class FusedOptimizerModule(ABC):
    """Mixin of modules whose parameters are updated in the backward pass."""

    @property
    @abstractmethod
    def fused_optimizer(self) -> KeyedOptimizer:
        """The optimizer that updates the parameters, under the names they have in the module."""


def fused_optimizer_of(module: nn.Module) -> CombinedOptimizer:
    """Combine the fused optimizers of a module tree into one, each under its module's path.

    Modules inside a `FusedOptimizerModule` are not searched. A module on two paths has the key of
    the first.

    Args:
        module: The root. If it is a `FusedOptimizerModule` itself, it has no key.
    """
    return CombinedOptimizer(list(_fused_optimizers(module, "", set())))


def _fused_optimizers(
    module: nn.Module, path: str, seen: set[nn.Module]
) -> Iterator[tuple[str, KeyedOptimizer]]:
    if module in seen:
        return
    seen.add(module)
    if isinstance(module, FusedOptimizerModule):
        yield path, module.fused_optimizer
        return
    for name, child in module.named_children():
        yield from _fused_optimizers(child, f"{path}.{name}" if path else name, seen)


def updates_in_backward(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer, or one inside it, updates parameters in the backward pass."""
    if isinstance(optimizer, CombinedOptimizer):
        return any(updates_in_backward(member) for _, member in optimizer.optimizers)
    if isinstance(optimizer, WrapperBase):
        return updates_in_backward(optimizer._optimizer)
    return isinstance(optimizer, FusedOptimizer) and bool(optimizer.params)
