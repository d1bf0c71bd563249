"""Decide again what depends on the dtypes of parameters: a model may be cast after its optimizer.

`model.bfloat16()` leaves the parameters in the groups, with other memory and another dtype.
"""

from collections.abc import Iterable

from torch import Tensor

from optgen.runtime.batch.context import OptimizerWithContext
from optgen.runtime.protocols import Group
from optgen.runtime.rule import Rule
from optgen.runtime.tensors.group_view import asked_view


def note_narrow_params(rule: Rule, groups: Iterable[Group]) -> None:
    """Set the flags of groups that say whether a parameter is of 16 bits now."""
    for group in groups if rule.narrow_flags else ():
        group.update(rule.narrow_values(group["params"]))


def check_params(optimizer: OptimizerWithContext, group: Group, params: Iterable[Tensor]) -> None:
    """Check parameters of a group without a view; `check_views` checks those in a view.

    Raises:
        ValueError: The rule cannot take a parameter. If it takes matrices only, the second line of
            the message says how two optimizers share a model.
    """
    if asked_view(group) is None:
        for param in params:
            try:
                optimizer._check_param(param)
            except ValueError as error:
                if hint := _hint_for_matrices(optimizer, param):
                    raise ValueError(f"{error}\n{hint}") from None
                raise


def _hint_for_matrices(optimizer: OptimizerWithContext, refused_param: Tensor) -> str:
    """Return what to do if a rule takes matrices of a parameter's kind, and no vectors; else ""."""

    def takes(*shape: int) -> bool:
        try:
            optimizer._check_param(refused_param.new_empty(shape, device="meta"))
        except ValueError:
            return False
        return True

    if takes(4) or not takes(4, 4):
        return ""
    name = type(optimizer).__name__
    call = f'optgen.optim.create_optimizer(model, {name}, others="adamw")'
    return f"hint: {call} gives {name} the matrices of a model, and AdamW the rest"
