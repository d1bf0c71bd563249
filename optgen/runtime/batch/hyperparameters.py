"""Convert a group's hyperparameters to numbers; check upper bounds, and the lengths of tuples."""

from array import array
from collections.abc import Iterable, Iterator
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin
from weakref import WeakKeyDictionary

from torch import Tensor

from optgen.runtime.protocols import HasLowerings
from optgen.runtime.rule import NONE
from optgen.runtime.torch_private import numel


class HyperEntry(NamedTuple):
    """One hyperparameter in a kernel's table: one number, or several for a tuple."""

    key: str
    may_be_none: tuple[bool, ...] = (False,)  # for each of its numbers
    upper_bound: float | None = None  # exclusive, of each of its numbers
    is_tuple: bool = False

    def split(self, value: Any) -> tuple[Any, ...] | list[Any]:
        """Return the numbers of a value; raise a ValueError if they are too few or too many."""
        numbers = value if self.is_tuple and isinstance(value, (tuple, list)) else (value,)
        if len(numbers) != len(self.may_be_none):
            raise ValueError(
                f"{self.key} must be {len(self.may_be_none)} numbers, not {len(numbers)}"
            )
        return numbers

    def convert(self, value: Any, may_be_none: bool) -> float:
        """Return one number as a kernel takes it; raise an error if it is invalid."""
        if value is None and may_be_none:
            return NONE
        try:
            number = float(value.detach() if isinstance(value, Tensor) else value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{self.key} must be a number, not {value!r}") from error
        if self.upper_bound is not None and number >= self.upper_bound:
            raise ValueError(f"{self.key} must be less than {self.upper_bound:g}, and is {number}")
        return number


class HyperConverter:
    """Converts and checks a group's hyperparameters, as a class or function declares them.

    Only the constructor checks lower bounds: a scheduler may leave a learning rate at -1e-20, and
    torch steps with negative rates as well. Upper bounds are checked here in every step: without
    them, a rule would divide by zero, or take the root of a negative number.
    """

    def __init__(self, lowered: HasLowerings) -> None:
        self._rule = rule = lowered.rule
        hints, bounds = lowered.hyper_annotations(), dict(rule.upper_bounds)
        self._entries = [_entry(key, hints.get(key), bounds.get(key)) for key in rule.hypers]

    def row(self, values: Iterable[Any]) -> "array[float]":
        """Return the numbers of a group's values, given in the rule's order."""
        row = array("d")
        for entry, value in self._pairs(values):
            for number, may_be_none in zip(entry.split(value), entry.may_be_none, strict=True):
                row.append(entry.convert(number, may_be_none))
        return row

    def check(self, values: Iterable[Any]) -> None:
        """Check a group's values as `row` does, but read no tensor: it may be on a GPU.

        Raises:
            TypeError: A value is no number.
            ValueError: A hyperparameter has too many or too few numbers, or a number that is not
                below its upper bound.
        """
        for entry, value in self._pairs(values):
            for number, may_be_none in zip(entry.split(value), entry.may_be_none, strict=True):
                if not isinstance(number, Tensor):
                    entry.convert(number, may_be_none)
                elif numel(number) != 1:
                    raise ValueError(f"{entry.key} must be 1-element, not {tuple(number.shape)}")

    def _pairs(self, values: Iterable[Any]) -> Iterator[tuple[HyperEntry, Any]]:
        return zip(self._entries, self._rule.choices_as_indices(values), strict=True)


_converters: WeakKeyDictionary[type[Any], HyperConverter] = WeakKeyDictionary()


def converter_of(lowered: HasLowerings) -> HyperConverter:
    """Return the converter of an optimizer's class, from a cache.

    `lowered` must be an optimizer: functions over lists all have one class.
    """
    lowered_class = type(lowered)
    if lowered_class not in _converters:
        _converters[lowered_class] = HyperConverter(lowered)
    return _converters[lowered_class]


def _entry(key: str, hint: Any, upper_bound: float | None) -> HyperEntry:
    is_tuple = get_origin(hint) is tuple
    hints = get_args(hint) if is_tuple else (hint,)
    return HyperEntry(key, tuple(map(_may_be_none, hints)), upper_bound, is_tuple)


def _may_be_none(hint: Any) -> bool:
    """Tell from an annotation whether None is valid. For a flag, None is valid and means False."""
    union = get_origin(hint) in (Union, UnionType)
    return hint is bool or (union and NoneType in get_args(hint))
