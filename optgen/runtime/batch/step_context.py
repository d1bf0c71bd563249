"""The step context: what an optimizer keeps from step to step, and restores after a failure.

It keeps batches, the cached step, a snapshot of the states, and placeholder states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import is_
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.rule import OptimizerLike
from optgen.runtime.state.create import CreatedState
from optgen.runtime.tensors.dtensor import memory_version, to_local

FORCED_LOWERING: ContextVar[str | None] = ContextVar("forced lowering", default=None)

current_forced_lowering: Callable[[], str | None] = FORCED_LOWERING.get
"""Return the lowering that `use_lowering` forces in this context; None if it forces none."""

_MAX_EARLIER_BATCHES = 3
"""Batches of a group that are kept besides the last step's: gradients of experts come and go."""


class OriginalParams(NamedTuple):
    """The parameters that the user gave to a group: their numbers of dimensions by identity.

    This object holds no references, not even weak ones: `torch.utils.swap_tensors`, and so
    `model.to()` of DTensors, refuses tensors that have weak references. The model keeps its
    parameters alive, so their identities stay valid.
    """

    dims_by_id: Mapping[int, int]

    def has(self, param: Tensor) -> bool:
        """Tell whether a parameter is one of these parameters."""
        return self.dims_by_id.get(id(param)) == param.dim()


class CachedStep(Protocol):
    """A step that a backend can repeat without gathering until groups, options or dtypes change.

    `check` and `run` both read the groups and tensors as they are now, and compare them with what
    the cached step can take. So `run` is safe without a `check` before it, and after any change.
    """

    forced_lowering: str | None  # the lowering that `use_lowering` forced when the step was cached
    zeroes_gradients: bool  # whether the step leaves gradients at zero, if its rule asks for that
    # Whether kernels read a gradient scaler's overflow flag, so that the host must not wait for it.
    skips_on_device: bool

    def check(self, optimizer: Any) -> bool:
        """Tell whether `run` would take the step; change nothing."""

    def run(self, optimizer: Any) -> bool:
        """Take the step, or change nothing and return False."""


@dataclass(eq=False, slots=True)
class SkipReport:
    """The answer of a step to a gradient scaler: whether a gradient was not finite."""

    skipped: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class TrainingValues:
    """The tensors and numbers that a program took for a parameter; the tensors' values before.

    `values_in_eval` are those after the program, of the tensors and of the parameter. A tensor that
    the program did not change has no second copy.
    """

    param: Tensor
    tensors: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    hypers: dict[str, Any]
    values_in_eval: tuple[Tensor, ...] = ()

    def after_program(self) -> TrainingValues:
        """Return these with the values that the program has left."""
        left = [
            before if _are_equal(tensor, before) else tensor.detach().clone()
            for tensor, before in zip(self.tensors, self.values, strict=True)
        ]
        return replace(self, values_in_eval=(*left, self.param.detach().clone()))

    def still_hold(self, tensors: tuple[Tensor, ...], hypers: dict[str, Any]) -> bool:
        """Tell whether these are the same, and all tensors are as the program left them."""
        are_same = len(tensors) == len(self.tensors) and all(map(is_, tensors, self.tensors))
        now = (*self.tensors, self.param)
        return are_same and hypers == self.hypers and all(map(_are_equal, now, self.values_in_eval))


def _are_equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(to_local(a), to_local(b))


@dataclass(eq=False, slots=True)
class StepContext:
    """The batches of the last step, and the states to restore if the current step fails."""

    batches: dict[int, Batch] = field(default_factory=dict)  # by the identity of the group
    # Batches of earlier steps with other parameters or tensors, by the identity of the group.
    earlier_batches: dict[int, list[Batch]] = field(default_factory=dict)
    # Fresh states that this step created.
    created_states: list[CreatedState] = field(default_factory=list)
    placeholders: list[Placeholder] = field(default_factory=list)
    saved_states: tuple[StateSnapshot, list[Placeholder]] | None = None  # for `roll_back`
    cached_step: CachedStep | None = None  # set if one backend took the whole step
    extra_inputs: dict[str, Any] = field(default_factory=dict)  # of this step, unchecked
    original_params: dict[int, OriginalParams] = field(default_factory=dict)  # by group identity
    shared_states: dict[str, Tensor] = field(default_factory=dict)  # of all groups, by key
    # By group identity: values that a change of mode rounded to 16 bits.
    before_eval: dict[int, list[TrainingValues]] = field(default_factory=dict)
    joint_step: Callable[[], None] | None = None  # set while several optimizers step as one
    skip_report: SkipReport | None = None  # set while a gradient scaler relies on the rule's check

    def batch_like(self, group_id: int, batch: Batch, last: Batch | None) -> Batch | None:
        """Return a batch of this group from an earlier step with equal findings; None if there is
        none. The last step's batch is looked at first, and kept if it is not the one.
        """
        earlier = [] if last is None else [last]
        earlier += self.earlier_batches.get(group_id, [])
        found = next((each for each in earlier if each.is_like(batch)), None)
        others = [each for each in earlier if each is not found]
        self.earlier_batches[group_id] = others[:_MAX_EARLIER_BATCHES]
        return found

    def forget(self) -> None:
        """Drop every tensor of the current step."""
        self.created_states, self.saved_states = [], None
        for batch in self.batches.values():
            batch.drop_tensors()
        # Drop the entries of parts: the group of a part is a new dict in every step.
        self.batches = {key: each for key, each in self.batches.items() if not each.indices}

    def choose_anew(self) -> None:
        """Forget which lowerings the batches of earlier steps have taken."""
        for batch in chain(self.batches.values(), *self.earlier_batches.values()):
            for part in (batch, *batch.parts):
                part.memo.pop("choice", None)


class OptimizerWithContext(OptimizerLike, Protocol):
    """An optimizer with a step context."""

    _context: StepContext

    @staticmethod
    def _check_param(param: Tensor) -> None:
        """Raise a ValueError for a parameter that the rule cannot take."""


class StateSnapshot:
    """The parameters that had states, and the entries of their dicts; tensors are not copied."""

    def __init__(self, states: MutableMapping[Tensor, Any]) -> None:
        self._states = dict(states)
        self._entries = list(map(dict, states.values()))

    def restore(self, states: MutableMapping[Tensor, Any]) -> None:
        """Restore parameters and entries, in their order; the dicts stay the same objects."""
        for param_states, entries in zip(self._states.values(), self._entries, strict=True):
            param_states.clear()
            param_states.update(entries)
        states.clear()
        states.update(self._states)


class Placeholder(NamedTuple):
    """A state: its parameter, key and value, and the value's version in autograd at creation."""

    param: Tensor
    key: str
    value: Tensor
    memory_version: int


def placeholders_of(states: Mapping[Tensor, dict[str, Any]]) -> list[Placeholder]:
    """Return a placeholder for each tensor of these states."""
    return [
        Placeholder(param, key, value, memory_version(value))
        for param, values in states.items()
        for key, value in values.items()
        if isinstance(value, Tensor)
    ]


def remove_placeholders(
    placeholders: Sequence[Placeholder], states: MutableMapping[Tensor, Any]
) -> None:
    """Remove the placeholders that nobody has replaced or written to since they were made."""
    for each in placeholders:
        values = states.get(each.param, {})
        if values.get(each.key) is each.value and memory_version(each.value) == each.memory_version:
            del values[each.key]
            if not values:
                del states[each.param]


class Refusal(RuntimeError):
    """A backend cannot take a step that it was chosen for; the message says why.

    Nothing has been updated, except that states were created or moved to another device, which a
    rollback undoes. From now on the backend's `build_or_reason` gives the reason, so
    another lowering is chosen.
    """
