"""Convert a group's hyperparameters to numbers; check bounds and lengths."""

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import signature
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from torch import Tensor

from optgen.runtime.rule import NONE, HasLowerings
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
        if isinstance(value, str):
            raise TypeError(f"{self.key} must be a number, not {value!r}{self._way_out(value)}")
        try:
            number = float(value.detach() if isinstance(value, Tensor) else value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{self.key} must be a number, not {value!r}") from error
        if self.upper_bound is not None and number >= self.upper_bound:
            raise ValueError(f"{self.key} must be less than {self.upper_bound:g}, and is {number}")
        return number

    def _way_out(self, text: str) -> str:
        """Return what to write instead of a number in quotes, after a colon; or ""."""
        try:
            float(text)
        except ValueError:
            return ""
        return f": write {text.strip()} without quotes"


class HyperConverter:
    """Converts and checks a group's hyperparameters, as a class or function declares them.

    Only the constructor checks lower bounds: a scheduler may leave a learning rate at -1e-20, and
    torch steps with negative rates as well. Upper bounds are checked here in every step: without
    them, a rule would divide by zero, or take the root of a negative number.
    """

    def __init__(self, lowered: HasLowerings | type[Any]) -> None:
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

    def check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Raise a TypeError for an argument that is text, a list or None, but should be a number.

        One number instead of a tuple is an error, too.

        The constructor compares arguments with their bounds. It would raise an error that names no
        argument.
        """
        for entry in self._entries:
            if entry.key in arguments and entry.key not in dict(self._rule.choices):
                value = arguments[entry.key]
                if entry.is_tuple and isinstance(value, (int, float)):
                    count = len(entry.may_be_none)
                    raise TypeError(
                        f"{entry.key} must be a tuple of {count} numbers, not {value!r}"
                    )
                is_row = entry.is_tuple and isinstance(value, (tuple, list))
                pairs = zip(value if is_row else (value,), entry.may_be_none, strict=False)
                for number, may_be_none in pairs:
                    if isinstance(number, (str, list, NoneType)):
                        entry.convert(number, may_be_none)

    def _pairs(self, values: Iterable[Any]) -> Iterator[tuple[HyperEntry, Any]]:
        return zip(self._entries, self._rule.choices_as_indices(values), strict=True)


_converters: WeakKeyDictionary[type[Any], HyperConverter] = WeakKeyDictionary()
_places_of_tuples: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()


def converter_of(lowered: HasLowerings) -> HyperConverter:
    """Return the converter of an optimizer's class, from a cache.

    `lowered` must be an optimizer: functions over lists all have one class.
    """
    lowered_class = type(lowered)
    if lowered_class not in _converters:
        _converters[lowered_class] = HyperConverter(lowered)
    return _converters[lowered_class]


def check_constructor_arguments(
    lowered_class: type[Any], args: Sequence[Any], hypers: Mapping[str, Any]
) -> None:
    """Raise an error for a constructor's argument that should be one number; the error names it.

    It is a TypeError, or a ValueError for a tensor of several numbers. `args` begins with the
    parameters. A subclass may declare other types in a constructor of its own, and then takes what
    it wants.
    """
    places = _tuple_arguments(lowered_class)
    rows = [
        *(hypers.get(key) for key in places),
        *(args[i] for i in places.values() if i < len(args)),
    ]
    has_number_for_tuple = any(isinstance(row, (int, float)) for row in rows)
    if not has_number_for_tuple and not any(map(_is_suspicious, (*args[1:], *hypers.values()))):
        return
    constructor: Any = lowered_class.__init__
    try:
        arguments = signature(constructor).bind_partial(None, *args, **hypers).arguments
    except TypeError:
        return  # the constructor itself says so
    hints, own_hints = lowered_class.hyper_annotations(), get_type_hints(constructor)
    known = {key: value for key, value in arguments.items() if own_hints.get(key) == hints.get(key)}
    for key, value in known.items():
        if _is_not_one_number(value) and Tensor not in get_args(hints.get(key)):
            raise ValueError(f"Tensor {key} must be 1-element")
    HyperConverter(lowered_class).check_arguments(known)


def _is_not_one_number(value: object) -> bool:
    return isinstance(value, Tensor) and numel(value) != 1


def _tuple_arguments(lowered_class: type[Any]) -> dict[str, int]:
    """Return the constructor's arguments whose default is a tuple, and their places; cached."""
    constructor: Any = lowered_class.__init__
    if constructor not in _places_of_tuples:
        parameters = [*signature(constructor).parameters.values()][1:]
        _places_of_tuples[constructor] = {
            each.name: place if each.kind is each.POSITIONAL_OR_KEYWORD else sys.maxsize
            for place, each in enumerate(parameters)
            if isinstance(each.default, tuple)
        }
    return _places_of_tuples[constructor]


def _is_suspicious(value: object) -> bool:
    """Tell whether a value, or one in a tuple, is text, a list, None or a tensor of several."""
    items = value if isinstance(value, tuple) else (value,)
    return any(isinstance(x, (str, list, NoneType)) or _is_not_one_number(x) for x in items)


def _entry(key: str, hint: Any, upper_bound: float | None) -> HyperEntry:
    is_tuple = get_origin(hint) is tuple
    hints = get_args(hint) if is_tuple else (hint,)
    return HyperEntry(key, tuple(map(_may_be_none, hints)), upper_bound, is_tuple)


def _may_be_none(hint: Any) -> bool:
    """Tell from an annotation whether None is valid. For a flag, None is valid and means False."""
    union = get_origin(hint) in (Union, UnionType)
    return hint is bool or (union and NoneType in get_args(hint))
