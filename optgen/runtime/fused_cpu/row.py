"""A group's row of the table: its hyperparameters as numbers, each where the kernel looks."""

from array import array
from collections.abc import Iterable
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from optgen.runtime.rule import NONE

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer


class Cell(NamedTuple):
    """One hyperparameter's place in the row."""

    key: str
    optional: tuple[bool, ...] = (False,)  # of each of its numbers: whether it may be None


class Row:
    """How a kernel's rows are laid out: as the constructor of its class declares the arguments."""

    def __init__(self, cls: "type[GeneratedOptimizer]") -> None:
        self._rule = cls.rule
        hints = _hints(cls)
        self._cells = [_cell(key, hints.get(key)) for key in cls.rule.hypers]

    def __call__(self, values: Iterable[Any]) -> "array[float]":
        """The row of a group's values, which stand in the rule's order."""
        row = array("d")
        for cell, value in zip(self._cells, self._rule.numbered(values), strict=True):
            parts = value if isinstance(value, (tuple, list)) else (value,)
            width = len(cell.optional)
            if len(parts) != width:
                raise ValueError(f"{cell.key} must be {width} numbers, not {len(parts)}")
            for part, optional in zip(parts, cell.optional, strict=True):
                if part is None and not optional:
                    raise TypeError(f"{cell.key} must be a number, not None")
                row.append(NONE if part is None else float(part))
        return row


def _hints(cls: "type[GeneratedOptimizer]") -> dict[str, Any]:
    """The constructor's annotations in the generated class, whose subclasses may have others."""
    for base in reversed(cls.__mro__):
        if vars(base).get("lowerings") == cls.lowerings:
            return get_type_hints(vars(base)["__init__"])
    return {}


def _cell(key: str, hint: Any) -> Cell:
    parts = get_args(hint) if get_origin(hint) is tuple else (hint,)
    return Cell(key, tuple(map(_may_be_none, parts)))


def _may_be_none(hint: Any) -> bool:
    """Tell by an annotation; Python takes None for False where a flag is asked for."""
    union = get_origin(hint) in (Union, UnionType)
    return hint is bool or (union and NoneType in get_args(hint))
