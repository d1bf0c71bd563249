"""Define an entry of a parameter's state, which specs declare and generated classes hand on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

from optgen.contract.quantization import QUANTIZATIONS

Shape = Literal["like", "row", "col", "scalar"] | tuple[str, str]

VIEW: Final = "view"
"""The key of the option in a group that asks for a view; the view may be invalid."""

RANK: Final = "rank"
"""The hyperparameter that limits the width of thin matrices, and a size in shapes of states."""

MATRIX_SHAPES: Final = (
    *(("rows", "rows"), ("cols", "cols"), (RANK, RANK)),
    *(("rows", RANK), ("cols", RANK), (RANK, "rows"), (RANK, "cols")),
)
"""Shapes of states that are matrices, in the last two axes: squares first, then thin ones."""

AT_LEAST_FLOAT32: Final = "at_least_float32"
"""The dtype of a state that is float32 for a parameter of 16 bits, and else the parameter's."""

FACTS: Final[Mapping[str, Callable[[Sequence[int]], bool]]] = {
    "factored": lambda shape: len(shape) > 1,
    "tall": lambda shape: len(shape) > 1 and shape[-2] >= shape[-1],
}
"""Predicates of a parameter's shape: `when=` may name them, and plans are made for their values."""

SIDES: Final[Mapping[str, int]] = {"rows": -2, "cols": -1}
"""The axes of a matrix, by the word that asks for its size."""
_WITHIN: Final = "_within_"


def size_limit(side: str, limit: str | int) -> str:
    """Return the name of the fact that a side has at most `limit`, a number or a hyperparameter.

    Such a fact is like a predicate of `FACTS`. A parameter without rows and columns has none.
    """
    return f"{side}{_WITHIN}{limit}"


def parts_of_limit(fact: str) -> tuple[str, str] | None:
    """Return the side and the limit in the name of a fact; None if it has none."""
    side, separator, limit = fact.partition(_WITHIN)
    return (side, limit) if separator and side in SIDES else None


def fact_holds(fact: str, shape: Sequence[int], group: Mapping[str, object]) -> bool:
    """Tell whether a fact holds for a parameter of a group."""
    if parts := parts_of_limit(fact):
        side, limit = parts
        bound: Any = int(limit) if limit.isdigit() else group[limit]
        try:
            return len(shape) > 1 and bool(shape[SIDES[side]] <= bound)
        except (TypeError, ValueError, RuntimeError):  # a tensor of several elements is neither
            raise TypeError(f"{limit} must be a number, not {bound!r}") from None
    return FACTS[fact](shape)


@dataclass(frozen=True)
class Condition:
    """A name and its answer: a hyperparameter or a fact of a shape that must be true, or false."""

    name: str
    holds: bool = True

    @classmethod
    def of(cls, text: str) -> Condition:
        """Return the condition that a spec writes as "amsgrad" or "not amsgrad"."""
        name = text.removeprefix("not ")
        return cls(name, name == text)

    def __str__(self) -> str:
        if self.limit:
            side, limit = self.limit
            return f"{side} {'<=' if self.holds else '>'} {limit}"
        return self.name if self.holds else f"not {self.name}"

    @property
    def negated(self) -> Condition:
        """Return the condition that holds if this one does not."""
        return Condition(self.name, not self.holds)

    @property
    def is_fact(self) -> bool:
        """Tell whether the name is a fact of a parameter's shape."""
        return self.name in FACTS or self.limit is not None

    @property
    def limit(self) -> tuple[str, str] | None:
        """The side and the limit, if the name is a limit of a size."""
        return parts_of_limit(self.name)

    def test(self, param: str) -> str:
        """Return the text of the condition in a rule."""
        if self.limit:
            side, _, rest = str(self).partition(" ")
            return f"{side}({param}) {rest}"
        return f"{self}({param})" if self.is_fact else str(self)


@dataclass(frozen=True)
class StateEntry:
    """An entry of a parameter's state, with the name that it has in checkpoints.

    * `shape`: "like" the parameter; "row", the parameter's shape with size 1 in the last axis;
      "col", with size 1 in the last axis but one; "scalar", one number per parameter; or a matrix,
      one of `MATRIX_SHAPES`, with the parameter's leading axes.
    * `init`: the value before the first step: a number, a hyperparameter's name, "p" for a copy of
      the parameter, or "index" for the parameter's number in the optimizer, counted from 0.
    * `when`: the condition under which it exists: a hyperparameter ("amsgrad", "not amsgrad"), a
      shape predicate ("factored": the parameter has rows and columns), or the name of a
      `size_limit`. None: always.
    * `dtype`: None for the parameter's dtype. For a "scalar", None is torch's choice: float32, or
      float64 if that is the default dtype.
    * `eager`: created by the constructor instead of the first step.
    * `rows`: if False, the state changes as a whole, and a sparse gradient is used as a dense one.
    * `written`: if False, the rule only reads it, and it keeps its initial value.
    * `on_device`: a "scalar" that the rule computes from a reduction. It lives on the parameter's
      device, and no step copies it to the host.
    * `of_group`: an `on_device` scalar that all parameters of a group share, and the group keeps.
    * `of_all`: an `of_group` state that all groups share. Each of them keeps it.
    * `step_argument`: for an extra input, the argument of `step` that passes it; else "". An extra
      input is not kept.
    * `block`, `map`, `min_elements`: for a dtype of `QUANTIZATIONS`. `block` is the number of
      elements of a block, and `map` says which values the codes stand for. A parameter with fewer
      elements than `min_elements` has a float32 state instead.
    """

    key: str
    init: float | str = 0.0
    shape: Shape = "like"
    dtype: str | None = None
    when: str | None = None
    eager: bool = False
    rows: bool = True
    written: bool = True
    on_device: bool = False
    of_group: bool = False
    of_all: bool = False
    step_argument: str = ""
    block: int = 256
    map: str = "dynamic"
    min_elements: int = 4096

    @property
    def is_quantized(self) -> bool:
        """Tell whether the state holds codes, except for small parameters."""
        return self.dtype in QUANTIZATIONS

    @property
    def width(self) -> str:
        """The width of a quantized state's codes in words, such as "8 bits"."""
        return QUANTIZATIONS[self.dtype].name if self.dtype else ""

    @cached_property
    def condition(self) -> Condition | None:
        """The condition that `when` writes; None if the state always exists."""
        return None if self.when is None else Condition.of(self.when)
