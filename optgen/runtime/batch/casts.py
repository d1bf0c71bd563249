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
        ValueError: The rule cannot take a parameter.
    """
    if asked_view(group) is None:
        for param in params:
            optimizer._check_param(param)
