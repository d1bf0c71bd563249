"""Read and write learning rates in the groups of an optimizer: numbers, or tensors in place."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from torch import Tensor
from torch.optim import Optimizer

Value = float | Tensor
T = TypeVar("T")


class HasOptimizer(Protocol):
    """A scheduler, as far as this file knows it."""

    optimizer: Optimizer


def check_optimizer(optimizer: object) -> None:
    """Raise a TypeError if an object is not an optimizer."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")


def copy_value(value: Any) -> Any:
    """Return a copy of a tensor, or the value itself if it is no tensor."""
    return value.clone() if isinstance(value, Tensor) else value


def copy_group_values(optimizer: Optimizer, key: str) -> list[Any]:
    """Return copies of the values that the groups hold under a key."""
    return [copy_value(group[key]) for group in optimizer.param_groups]


def set_rates(rates: Iterable[tuple[dict[str, Any], Value]], key: str = "lr") -> None:
    """Set the rates of groups: replace a number, and fill a tensor in place.

    All groups share one tensor if the optimizer was given one tensor for all. If their rates now
    differ, a group whose rate is not that of the first group gets a tensor of its own.
    """
    rate_by_tensor: dict[int, Value] = {}
    for group, value in rates:
        lr = group.get(key)
        if not isinstance(lr, Tensor):
            group[key] = copy_value(value)
            continue
        if id(lr) in rate_by_tensor and bool(rate_by_tensor[id(lr)] != value):
            lr = group[key] = lr.clone()
        rate_by_tensor[id(lr)] = value
        lr.fill_(value.squeeze() if isinstance(value, Tensor) else value)


def values_per_group(name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """Return one value for each group, from one value for all or a list of one for each."""
    group_count = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        value = [value] * group_count
    elif len(value) != group_count:
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups. "
            f"{name} has {len(value)} values, param_groups has {group_count}."
        )
    return list(map(copy_value, value))


def pair_with_groups(
    scheduler: HasOptimizer, values: Sequence[T]
) -> Iterator[tuple[dict[str, Any], T]]:
    """Return pairs of a group of a scheduler's optimizer and its value.

    Raises:
        ValueError: the optimizer has more or fewer groups than there are values.
    """
    groups = scheduler.optimizer.param_groups
    if len(groups) != len(values):
        raise ValueError(
            f"{type(scheduler).__name__} was made for {len(values)} param groups, and its "
            f"optimizer has {len(groups)} now: make a new scheduler after `add_param_group`"
        )
    return zip(groups, values, strict=True)
