"""A group's hyperparameters as numbers: how many there are of each, and what they may not be."""

from array import array
from collections.abc import Iterable, Iterator
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin
from weakref import WeakKeyDictionary

from torch import Tensor

from optgen.runtime.protocols import Lowered
from optgen.runtime.rule import NONE
from optgen.runtime.torch_private import numel


class Cell(NamedTuple):
    """One hyperparameter's place in the row of a kernel's table."""

    key: str
    optional: tuple[bool, ...] = (False,)  # of each of its numbers: whether it may be None
    below: float | None = None  # what each of its numbers must be less than

    def parts(self, value: Any) -> tuple[Any, ...] | list[Any]:
        """Return the numbers of a value, or raise an error if they are too few or too many."""
        parts = value if isinstance(value, (tuple, list)) else (value,)
        if len(parts) != len(self.optional):
            raise ValueError(f"{self.key} must be {len(self.optional)} numbers, not {len(parts)}")
        return parts

    def number(self, part: Any, optional: bool) -> float:
        """Return one of them as a kernel takes it, or raise an error if that cannot be."""
        if part is None and optional:
            return NONE
        try:
            number = float(part.detach() if isinstance(part, Tensor) else part)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{self.key} must be a number, not {part!r}") from error
        if self.below is not None and number >= self.below:
            raise ValueError(f"{self.key} must be less than {self.below:g}, and is {number}")
        return number


class Numbers:
    """The hyperparameters of a class or function, as its signature declares them.

    Bounds from below are the constructor's alone: a scheduler may leave a rate at -1e-20, and a
    negative one climbs, in torch too. Beyond a limit from above a rule divides by zero, or takes
    the root of a negative number.
    """

    def __init__(self, owner: Lowered) -> None:
        self._rule = rule = owner.rule
        hints, below = owner.hyper_annotations(), dict(rule.below)
        self._cells = [_cell(key, hints.get(key), below.get(key)) for key in rule.hypers]

    def row(self, values: Iterable[Any]) -> "array[float]":
        """Return the numbers of a group's values, which stand in the rule's order."""
        row = array("d")
        for cell, value in self._pairs(values):
            for part, optional in zip(cell.parts(value), cell.optional, strict=True):
                row.append(cell.number(part, optional))
        return row

    def check(self, values: Iterable[Any]) -> None:
        """Raise the same errors; but of tensors, which may be on a device, only their size is seen.

        Raises:
            TypeError: A value is none of the numbers that are asked for.
            ValueError: There are too many or too few, or one is beyond its limit.
        """
        for cell, value in self._pairs(values):
            for part, optional in zip(cell.parts(value), cell.optional, strict=True):
                if not isinstance(part, Tensor):
                    cell.number(part, optional)
                elif numel(part) != 1:
                    raise ValueError(f"{cell.key} must be 1-element, not {tuple(part.shape)}")

    def _pairs(self, values: Iterable[Any]) -> Iterator[tuple[Cell, Any]]:
        return zip(self._cells, self._rule.choices_as_indices(values), strict=True)


_numbers: WeakKeyDictionary[type[Any], Numbers] = WeakKeyDictionary()


def numbers_of(owner: Lowered) -> Numbers:
    """Return what is known of an optimizer's hyperparameters: of all of its class the same."""
    kind = type(owner)
    if kind not in _numbers:
        _numbers[kind] = Numbers(owner)
    return _numbers[kind]


def _cell(key: str, hint: Any, below: float | None) -> Cell:
    parts = get_args(hint) if get_origin(hint) is tuple else (hint,)
    return Cell(key, tuple(map(_may_be_none, parts)), below)


def _may_be_none(hint: Any) -> bool:
    """Tell by an annotation; Python takes None for False where a flag is asked for."""
    union = get_origin(hint) in (Union, UnionType)
    return hint is bool or (union and NoneType in get_args(hint))
