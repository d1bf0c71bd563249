"""Read the values of a param group that a cached step depends on."""

from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

from torch import Tensor

from optgen.runtime.batch.dispatch_key import OPTIONS
from optgen.runtime.protocols import Group
from optgen.runtime.rule import Rule
from optgen.runtime.tensors.group_view import VIEW


class GroupValues(NamedTuple):
    """The values of a group that a step depends on."""

    options: tuple[Any, ...]
    params: list[Tensor]
    hypers: tuple[Any, ...]


class GroupGetter(NamedTuple):
    """Getter of the values of groups that have certain keys."""

    key_count: int  # how many keys the group has; a key that is added may be an option
    get_items: Callable[[Group], tuple[Any, ...]]
    option_count: int  # how many of the items are options; the parameters follow
    has_view: bool  # whether the group has the option `view`

    @classmethod
    def of(cls, rule: Rule, group: Group) -> "GroupGetter":
        """Return the getter for groups with the same keys as this group."""
        options = [key for key in (*OPTIONS, VIEW) if key in group]
        hypers = [key for key in rule.hypers if key in group]
        get_items = _items_of([*options, "params", *hypers])
        return cls(len(group), get_items, len(options), VIEW in group)

    def values(self, group: Group) -> GroupValues:
        """Return a group's values.

        Raise a `KeyError` if a key is missing, or if the group has gained or lost its view.
        """
        if (VIEW in group) is not self.has_view:
            raise KeyError(VIEW)
        items, count = self.get_items(group), self.option_count
        return GroupValues(items[:count], items[count], items[count + 1 :])


def _items_of(keys: list[str]) -> Callable[[Group], tuple[Any, ...]]:
    """Return a function that returns a group's values of these keys, also of one key as a tuple."""
    first, *others = keys
    return itemgetter(first, *others) if others else lambda group: (group[first],)


def is_constant(value: Any) -> bool:
    """Tell whether a value is immutable; a tensor or a list is not."""
    if isinstance(value, tuple):
        return all(map(is_constant, value))
    return value is None or isinstance(value, (bool, int, float, str))
