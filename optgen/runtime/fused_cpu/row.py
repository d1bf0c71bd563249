"""A group's row of the table: its hyperparameters as numbers, each where the kernel looks."""

from array import array
from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from optgen.runtime.elementwise import Elementwise
from optgen.runtime.rule import NONE, Lowered


class Cell(NamedTuple):
    """One hyperparameter's place in the row."""

    key: str
    optional: tuple[bool, ...] = (False,)  # of each of its numbers: whether it may be None


class Row:
    """How a kernel's rows are laid out: as its constructor or function declares the arguments."""

    def __init__(self, owner: Lowered) -> None:
        self._rule = owner.rule
        hints = _hints(owner)
        self._cells = [_cell(key, hints.get(key)) for key in owner.rule.hypers]

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


def _hints(owner: Lowered) -> dict[str, Any]:
    """The function's annotations; or the constructor's in the generated class, whose subclasses may
    have others."""
    if isinstance(owner, Elementwise):
        return get_type_hints(owner.signature)
    kind = owner if isinstance(owner, type) else type(owner)
    for base in reversed(kind.__mro__):
        if vars(base).get("lowerings") == owner.lowerings:
            return get_type_hints(vars(base)["__init__"])
    return {}


def _cell(key: str, hint: Any) -> Cell:
    parts = get_args(hint) if get_origin(hint) is tuple else (hint,)
    return Cell(key, tuple(map(_may_be_none, parts)))


def _may_be_none(hint: Any) -> bool:
    """Tell by an annotation; Python takes None for False where a flag is asked for."""
    union = get_origin(hint) in (Union, UnionType)
    return hint is bool or (union and NoneType in get_args(hint))
