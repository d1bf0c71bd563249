"""Set rates by the user's functions of the step."""

import types
from collections.abc import Callable
from typing import Any, ClassVar

from torch.optim import Optimizer

from optgen.optim.lr_scheduler.base import LRScheduler, Value, copy_group_values, pair_with_groups

Function = Callable[[int], float]


def attributes_to_save(function: object) -> dict[str, Any] | None:
    """Return the attributes of a callable object, for a checkpoint; None for a plain function."""
    if isinstance(function, types.FunctionType) or not hasattr(function, "__dict__"):
        return None
    return vars(function).copy()


class _FunctionsLR(LRScheduler):
    _unsaved_attributes: ClassVar[tuple[str, ...]] = ("optimizer", "lr_lambdas")

    def __init__(
        self, optimizer: Optimizer, lr_lambda: Function | list[Function], last_epoch: int = -1
    ) -> None:
        self.optimizer = optimizer
        group_count = len(optimizer.param_groups)
        if not isinstance(lr_lambda, (list, tuple)):
            self.lr_lambdas = [lr_lambda] * group_count
        elif len(lr_lambda) != group_count:
            raise ValueError(f"Expected {group_count} lr_lambdas, but got {len(lr_lambda)}")
        else:
            self.lr_lambdas = list(lr_lambda)
        self._check_functions()
        super().__init__(optimizer, last_epoch)

    def _check_functions(self) -> None:
        """Raise a TypeError if a function is not callable, in classes where torch checks that."""

    def state_dict(self) -> dict[str, Any]:
        """Return all attributes except the optimizer.

        Of the user's functions, callable objects are saved by their attributes. Plain functions are
        not saved.
        """
        return {
            **super().state_dict(),
            "lr_lambdas": list(map(attributes_to_save, self.lr_lambdas)),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a `state_dict`. Functions stay those of the constructor."""
        state = dict(state_dict)
        for function, attributes in zip(self.lr_lambdas, state.pop("lr_lambdas"), strict=True):
            if attributes is not None:
                vars(function).update(attributes)
        super().load_state_dict(state)


class LambdaLR(_FunctionsLR):
    r"""Set the learning rate to the base rate times a function of the step.

    .. math::
        \eta_t = \eta_0 \, f(t)

    Args:
        optimizer (Optimizer): The optimizer whose rates are set.
        lr_lambda (function or list): :math:`f`, for all groups or one for each.
        last_epoch (int): -1 to begin, else the last step that was taken. Default: -1.

    Raises:
        ValueError: There are not as many functions as groups.
    """

    def _next_lr(self) -> list[Value]:
        pairs = zip(self.base_lrs, self.lr_lambdas, strict=True)
        return [base * function(self.last_epoch) for base, function in pairs]


class MultiplicativeLR(_FunctionsLR):
    r"""Multiply the learning rate by a function of the step, in each step but the first.

    .. math::
        \eta_t = \eta_{t-1} \, f(t)

    Args:
        optimizer (Optimizer): The optimizer whose rates are set.
        lr_lambda (function or list): :math:`f`, for all groups or one for each.
        last_epoch (int): -1 to begin, else the last step that was taken. Default: -1.

    Raises:
        ValueError: There are not as many functions as groups.
        TypeError: A function is not callable.
    """

    def _check_functions(self) -> None:
        for function in self.lr_lambdas:
            if not callable(function):
                raise TypeError(
                    f"lr_lambda should be a function, but got {type(function).__name__}"
                )

    def _next_lr(self) -> list[Value]:
        if self._is_initial:
            return copy_group_values(self.optimizer, "lr")
        pairs = pair_with_groups(self, self.lr_lambdas)
        return [group["lr"] * function(self.last_epoch) for group, function in pairs]
