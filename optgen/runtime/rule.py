"""The description of a rule that a generated class gives to the runtime; protocols of such classes.

The protocols are for modules that cannot import the optimizer class.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, Final, Protocol, TypeAlias

import torch
from torch import Tensor

from optgen.contract.states import (
    FACTS,
    MATRIX_SHAPES,
    RANK,
    VIEW,
    Condition,
    StateEntry,
    fact_holds,
)

NONE: Final[float] = struct.unpack("<d", struct.pack("<Q", 0x7FF80000004E4F4E))[0]
"""The number that stands for None in a kernel: a NaN with bits that no arithmetic produces."""


@dataclass(frozen=True)
class State(StateEntry):
    """An entry of a parameter's state, and what the runtime asks about it."""

    def __post_init__(self) -> None:
        if self.shape not in ("like", "row", "col", "scalar", *MATRIX_SHAPES):
            raise ValueError(f"state {self.key!r}: unknown shape {self.shape!r}")
        if self.key == "step":
            raise ValueError("a state may not be called 'step': the runtime counts steps there")

    @property
    def is_host_scalar(self) -> bool:
        """Tell whether the state is a scalar that the host may compute, like a step count."""
        return self.shape == "scalar" and not self.on_device

    def is_present(self, group: Mapping[str, object]) -> bool:
        """Tell whether parameters of this group can have the state; `suits` tests their shapes."""
        condition = self.condition
        if condition is None or condition.is_fact:
            return True
        if self.step_argument:  # a step sets this flag, in a copy of the group
            return bool(group.get(condition.name))
        return truth(group[condition.name]) is condition.holds

    def suits(self, param: Tensor, group: Mapping[str, object]) -> bool:
        """Tell whether a parameter of this shape has the state, if its group has it."""
        return self.suits_each([param], group)[0]

    def suits_each(self, params: Sequence[Tensor], group: Mapping[str, object]) -> list[bool]:
        """Tell, for each parameter, what `suits` tells."""
        condition = self.condition
        if condition is None or not condition.is_fact:
            return [True] * len(params)
        name, holds = condition.name, condition.holds
        return [fact_holds(name, param.shape, group) is holds for param in params]

    @property
    def is_ranked(self) -> bool:
        """Tell whether the state is a matrix whose size depends on the rank."""
        return not isinstance(self.shape, str) and RANK in self.shape

    def shape_for(self, param: Tensor, rank: int = 0) -> list[int]:
        """Return the shape of the parameter's state; the state must not be a scalar.

        The rank is at most the number of rows, and at most the number of columns.
        """
        shape = list(param.shape)
        if self.shape in ("row", "col"):
            shape[-1 if self.shape == "row" else -2] = 1
        elif not isinstance(self.shape, str):
            rows, cols = shape[-2:]
            sizes = {"rows": rows, "cols": cols, RANK: min(rank, rows, cols)}
            shape[-2:] = [sizes[name] for name in self.shape]
        return shape


@dataclass(frozen=True)
class MatrixCall:
    """A matrix op between two parts of a fused C++ step: `target = op(source, *arguments)`."""

    target: str
    op: str
    source: str
    arguments: tuple[str | float, ...] = ()  # keys of a group, and numbers
    facts: tuple[tuple[tuple[str, bool], ...], ...] = ()  # of each plan that has it; () is all
    options: tuple[str, ...] = ()  # further arguments; "parameter" is the dtype of `source`

    def selected_indices(self, params: Sequence[Tensor]) -> list[int]:
        """Return the indices of the parameters that the op applies to."""
        return [index for index, param in enumerate(params) if self._applies_to(param)]

    def _applies_to(self, param: Tensor) -> bool:
        return not self.facts or any(
            all(FACTS[fact](param.shape) is holds for fact, holds in plan) for plan in self.facts
        )


@dataclass(frozen=True)
class Rule:
    """The description of an update rule for the runtime; the lowerings have its arithmetic."""

    name: str  # the name of the spec file, the generated folder and torch's module
    states: tuple[State, ...]  # in checkpoint order, without `step`
    hypers: tuple[str, ...]  # the group values that lowerings take, in this order
    step: str | None = "tensor"  # a parameter's step count: a "tensor" or an "int"; None: no count
    fresh: tuple[str, ...] = ()  # states whose first step is different
    streams: tuple[str, ...] = ()  # scalar states that only draws read: one for each parameter
    gradient: str = "dense"  # "dense", "rows" (sparse gradients work too) or "sparse_only"
    sparse_hint: str = ""  # the end of the error about sparse gradients
    scatter_adds: bool = False  # it only adds a multiple of a gradient, dense or sparse
    dense_only: tuple[str, ...] = ()  # group values that forbid sparse gradients if true
    scalar_device: str = "cpu"  # of scalar states; "param": always on the parameter's device
    tensor_hypers: tuple[str, ...] = ("lr",)  # if one is a tensor, the for-loop takes its dtype
    elementwise: bool = True  # false: a flat partition of parameters would change the result
    widens: bool = False  # it computes in float32 or wider: it rounds, draws or declares a dtype
    draws: bool = False  # it draws random numbers, which depend on the positions of elements
    why_uncut: str = ""  # why it is not cut into sweeps; it then has no kernels of its own
    by_matrix: bool = False  # each matrix of a parameter steps by itself, as if it were a parameter
    codes_readers: tuple[str, ...] = ()  # fused lowerings that read its quantized states
    sweeps: tuple[str, ...] = ()  # functions for its elementwise parts; only if `why_uncut`
    fused_share: float = 1.0  # of the elementwise memory traffic of a fused step: what is in sweeps
    why_no_sweeps: str = ""  # why it has no such functions, and so no fused step
    matrix_calls: tuple[MatrixCall, ...] = ()  # matrix ops that cut its fused C++ step into parts
    matrices: tuple[str, ...] = ()  # their operands and results, in the order of the kernel's table
    why_not_in_triton: str = ""  # why it has no lowering to Triton, although it is cut into sweeps
    ranked: bool = False  # it has matrices whose shapes depend on the group value "rank"
    wide: bool = False  # it reduces over several parameters, which take each step together
    ignores_scale: bool = False  # it scales all gradients together, then takes only directions
    zero_grad: bool = False  # a step leaves the gradients at zero
    skip_count: str = ""  # the state that counts steps skipped because a gradient is not finite
    facts: tuple[str, ...] = ()  # shape predicates on which states and plans depend
    backfill: tuple[tuple[str, object], ...] = ()  # torch's values for groups of old checkpoints
    optional: tuple[tuple[str, object], ...] = ()  # keys torch's groups lack, and their defaults
    fixed: tuple[tuple[str, object], ...] = ()  # group values that no checkpoint may change
    narrow_flags: tuple[str, ...] = ()  # group values: is any of the parameters of 16 bits?
    choices: tuple[tuple[str, tuple[str | None, ...]], ...] = ()  # keys, and their valid values
    upper_bounds: tuple[tuple[str, float], ...] = ()  # keys, and exclusive bounds of their values
    equal: tuple[str, ...] = ()  # keys whose values must be equal in all groups
    equal_or_0: tuple[str, ...] = ()  # keys whose values must be equal in all groups, or 0

    def __post_init__(self) -> None:
        keys = [state.key for state in self.states]
        if len(set(keys)) != len(keys):
            raise ValueError(f"rule {self.name!r}: two states have one key")
        if unknown := set(self.fresh) - set(keys):
            raise ValueError(f"rule {self.name!r}: no state {sorted(unknown)[0]!r}")
        if self.gradient not in ("dense", "rows", "sparse_only"):
            raise ValueError(f"rule {self.name!r}: unknown gradient kind {self.gradient!r}")
        if unknown := {fact for fact in self.facts if not Condition(fact).is_fact}:
            raise ValueError(f"rule {self.name!r}: no fact {sorted(unknown)[0]!r}")
        if self.step not in ("tensor", "int", None):
            raise ValueError(f"rule {self.name!r}: unknown kind of step {self.step!r}")

    @cached_property
    def inputs(self) -> tuple[State, ...]:
        """The extra inputs, which each step is handed."""
        return tuple(state for state in self.states if state.step_argument)

    @cached_property
    def group_states(self) -> tuple[State, ...]:
        """The states that groups keep, those of all groups too."""
        return tuple(state for state in self.states if state.of_group)

    @cached_property
    def all_states(self) -> tuple[State, ...]:
        """The states with one value for all groups."""
        return tuple(state for state in self.states if state.of_all)

    @cached_property
    def keys_of_equal_values(self) -> tuple[str, ...]:
        """The keys of `equal` and `equal_or_0`."""
        return (*self.equal, *self.equal_or_0)

    @cached_property
    def quantized_states(self) -> tuple[State, ...]:
        """The states that hold codes."""
        return tuple(state for state in self.states if state.is_quantized)

    def why_codes_are_not_read(self, lowering: str) -> str:
        """Return why a lowering's kernel does not read quantized states; "" if it does."""
        if not self.quantized_states or lowering in self.codes_readers:
            return ""
        return "quantized states in a rule on rows, columns or matrices"

    @cached_property
    def needs_inputs(self) -> bool:
        """Tell whether every step needs an extra input."""
        return any(state.when is None for state in self.inputs)

    def view(self, group: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Return a group's view; None if it is in pieces, or if the rule looks at no shape."""
        view = None if self.elementwise else group.get(VIEW)
        return None if isinstance(view, list) else view

    def pieces(self, group: Mapping[str, Any]) -> list[tuple[int, ...]] | None:
        """Return the views of the pieces that a group's parameters are cut into; else None."""
        view = None if self.elementwise else group.get(VIEW)
        return view if isinstance(view, list) else None

    def sees_whole(self, group: Mapping[str, Any]) -> bool:
        """Tell whether the rule sees a group's parameters as they are, without a view."""
        return self.elementwise or group.get(VIEW) is None

    def rank(self, group: Mapping[str, Any]) -> int:
        """Return a group's rank; 0 for a rule that has none.

        Raises:
            ValueError: The rank is no whole number of at least 1.
        """
        if not self.ranked:
            return 0
        value = group[RANK]
        rank = float(value) if isinstance(value, Real) else 0.0
        if not (rank >= 1 and rank % 1 == 0):
            raise ValueError(f"{RANK} must be a whole number of at least 1, and is {value!r}")
        return int(rank)

    def fixed_values(self, params: Iterable[Tensor]) -> dict[str, object]:
        """Return the values of a group of these parameters that no checkpoint may change."""
        return {**dict(self.fixed), **self.narrow_values(params)}

    def narrow_values(self, params: Iterable[Tensor]) -> dict[str, bool]:
        """Return the flags of a group that say whether any of these parameters is of 16 bits."""
        if not self.narrow_flags:
            return {}
        is_narrow = any(p.is_floating_point() and p.element_size() == 2 for p in params)
        return dict.fromkeys(self.narrow_flags, is_narrow)

    def drop_unset(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return defaults without the optional keys that have their default values."""
        return drop_unset(defaults, dict(self.optional))

    def hyper_values(self, group: Mapping[str, Any]) -> list[Any]:
        """Return the hyperparameters of a group, in the rule's order."""
        defaults = dict(self.optional)
        return [group[key] if key in group else defaults[key] for key in self.hypers]

    def choices_as_indices(self, values: Iterable[Any]) -> Iterable[Any]:
        """Replace choices by their indices; hyperparameters come in the rule's order."""
        if not self.choices:
            return values
        choices = dict(self.choices)
        return [
            _choice_index(key, value, choices[key]) if key in choices else value
            for key, value in zip(self.hypers, values, strict=True)
        ]


def _choice_index(key: str, value: object, choices: tuple[str | None, ...]) -> int:
    if value not in choices:
        raise ValueError(f"Invalid {key} value: {value}")
    return choices.index(value)


def drop_unset(defaults: Mapping[str, Any], optional: Mapping[str, object]) -> dict[str, Any]:
    """Return defaults without the optional keys that have their values in `optional`."""
    return {
        key: value
        for key, value in defaults.items()
        if key not in optional or value is not optional[key]
    }


def truth(value: object) -> bool:
    """Tell whether a hyperparameter is neither None nor 0; a tensor is true, and is not read."""
    return isinstance(value, Tensor) or bool(value)


def number(value: Any) -> Any:
    """Convert a hyperparameter to a Python number or a tuple of numbers; keep None and strings."""
    if isinstance(value, (tuple, list)):
        return tuple(map(number, value))
    return value.item() if hasattr(value, "item") else value  # of a tensor or a NumPy scalar


def compute_dtype(stored: torch.dtype) -> torch.dtype:
    """Return the dtype in which a rule computes the elements of a parameter of this dtype."""
    return torch.float64 if stored == torch.float64 else torch.float32


Group: TypeAlias = dict[str, Any]
"""A parameter group: its parameters under "params", and its hyperparameters and options."""


class HasLowerings(Protocol):
    """An optimizer, or a function over lists, with generated lowerings."""

    @property
    def rule(self) -> Rule:
        """Return the description of the update rule."""

    @property
    def lowerings(self) -> str:
        """Return the name of the generated package that holds the lowerings."""

    def hyper_annotations(self) -> dict[str, Any]:
        """Return the type annotations of the hyperparameters, by name."""


class OptimizerLike(HasLowerings, Protocol):
    """An optimizer with parameter groups and state, as torch lays them out."""

    param_groups: list[Group]
    state: defaultdict[Tensor, Any]
    defaults: Group
