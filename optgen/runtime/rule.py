"""The frozen facts about an algorithm that a generated class hands to the runtime."""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

NONE: Final[float] = struct.unpack("<d", struct.pack("<Q", 0x7FF80000004E4F4E))[0]
"""None among the numbers of a kernel: a NaN that no arithmetic makes, known by its bits."""

FACTS: Final[Mapping[str, Callable[[Tensor], bool]]] = {"factored": lambda param: param.ndim > 1}
"""What a rule may ask of a parameter's shape, and states and plans may depend on."""


@dataclass(frozen=True)
class State:
    """One entry of a parameter's state."""

    key: str  # its name in a checkpoint
    init: float | str = 0.0  # a number, a hyperparameter's name, or "p": a copy of the parameter
    shape: str = "like"  # "like" the parameter, one number per "row" or "col", or one "scalar"
    dtype: str | None = None  # None: the parameter's, or of a scalar what torch keeps its own in
    when: str | None = None  # "name" or "not name" of a group value or a fact; None: always there
    eager: bool = False  # made by the constructor, not by the first step
    rows: bool = True  # false: it changes as a whole, and a sparse gradient is taken as a dense one
    written: bool = True  # false: the rule only reads it

    def __post_init__(self) -> None:
        if self.shape not in ("like", "row", "col", "scalar"):
            raise ValueError(f"state {self.key!r}: unknown shape {self.shape!r}")
        if self.key == "step":
            raise ValueError("a state may not be called 'step': the runtime counts steps there")

    def present(self, group: Mapping[str, object]) -> bool:
        """Tell whether parameters of this group have the state, or those of some shape."""
        if self.when is None:
            return True
        name = self.when.removeprefix("not ")
        return name in FACTS or truth(group[name]) is not self.when.startswith("not ")

    def suits(self, param: Tensor) -> bool:
        """Tell whether a parameter of this shape has the state, if its group has."""
        return self.suits_each([param])[0]

    def suits_each(self, params: Sequence[Tensor]) -> list[bool]:
        """The same for each of several parameters."""
        name = (self.when or "").removeprefix("not ")
        holds = FACTS.get(name)
        if holds is None:
            return [True] * len(params)
        wanted = name == self.when
        return [holds(param) is wanted for param in params]

    def shape_for(self, param: Tensor) -> list[int]:
        """The shape of the state of a parameter, unless it is one number."""
        shape = list(param.shape)
        if self.shape in ("row", "col"):
            shape[-1 if self.shape == "row" else -2] = 1
        return shape


@dataclass(frozen=True)
class Rule:
    """What the runtime must know of an update rule; its arithmetic is in the lowerings."""

    name: str  # spec file, generated folder and torch's module
    states: tuple[State, ...]  # in checkpoint order, `step` apart
    hypers: tuple[str, ...]  # the group values that lowerings take, in this order
    step: str | None = "tensor"  # how a parameter's steps are counted: "tensor", "int", None: not
    fresh: tuple[str, ...] = ()  # states whose first step is different
    gradient: str = "dense"  # "dense", "rows" (sparse ones work too) or "sparse_only"
    sparse_hint: str = ""  # ends the error about sparse gradients
    adds: bool = False  # of a sparse gradient, multiples to the parameter, and does nothing else
    dense_only: tuple[str, ...] = ()  # group values that, where true, allow no sparse gradient
    scalar_device: str = "cpu"  # of scalars unless fused or capturable; "param": the parameter's
    tensor_hypers: tuple[str, ...] = ("lr",)  # a tensor of these is computed with in its dtype
    elementwise: bool = True  # false: a flat partition of parameters would change the result
    facts: tuple[str, ...] = ()  # of a parameter's shape: where they differ, so do states and plans
    backfill: tuple[tuple[str, object], ...] = ()  # what torch gives groups of older checkpoints
    optional: tuple[tuple[str, object], ...] = ()  # keys torch's groups lack, and what none means
    fixed: tuple[tuple[str, object], ...] = ()  # group values no checkpoint may change
    choices: tuple[tuple[str, tuple[str | None, ...]], ...] = ()  # what a group value is among
    below: tuple[tuple[str, float], ...] = ()  # what a group's numbers must be less than

    def __post_init__(self) -> None:
        keys = [state.key for state in self.states]
        if len(set(keys)) != len(keys):
            raise ValueError(f"rule {self.name!r}: two states have one key")
        if unknown := set(self.fresh) - set(keys):
            raise ValueError(f"rule {self.name!r}: no state {sorted(unknown)[0]!r}")
        if self.gradient not in ("dense", "rows", "sparse_only"):
            raise ValueError(f"rule {self.name!r}: unknown gradient kind {self.gradient!r}")
        if unknown := set(self.facts) - set(FACTS):
            raise ValueError(f"rule {self.name!r}: no fact {sorted(unknown)[0]!r}")
        if self.step not in ("tensor", "int", None):
            raise ValueError(f"rule {self.name!r}: unknown kind of step {self.step!r}")

    def drop_unset(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Defaults without the keys that torch's groups lack and nobody has asked for."""
        return drop_unset(defaults, dict(self.optional))

    def values(self, group: Mapping[str, Any]) -> list[Any]:
        """The hyperparameters of a group, in the rule's order."""
        absent = dict(self.optional)
        return [group[key] if key in group else absent[key] for key in self.hypers]

    def choices_as_indices(self, values: Iterable[Any]) -> Iterable[Any]:
        """Hyperparameters in the rule's order, a choice as its place among its choices."""
        if not self.choices:
            return values
        known = dict(self.choices)
        pairs = zip(self.hypers, values, strict=True)
        return [
            _choice_index(key, value, known[key]) if key in known else value for key, value in pairs
        ]


def _choice_index(key: str, value: object, choices: tuple[str | None, ...]) -> int:
    if value not in choices:
        raise ValueError(f"Invalid {key} value: {value}")
    return choices.index(value)


def drop_unset(defaults: Mapping[str, Any], absent: Mapping[str, object]) -> dict[str, Any]:
    """Return the defaults without those that say no more than that they are `absent`."""
    return {k: v for k, v in defaults.items() if k not in absent or v is not absent[k]}


def truth(value: object) -> bool:
    """The truth of a hyperparameter: not None and not 0; a tensor counts as true, unread."""
    return isinstance(value, Tensor) or bool(value)


def number(value: Any) -> Any:
    """A hyperparameter as a Python number, or several; None and names are left alone."""
    if isinstance(value, (tuple, list)):
        return tuple(map(number, value))
    return value.item() if hasattr(value, "item") else value  # a tensor's, or NumPy's
