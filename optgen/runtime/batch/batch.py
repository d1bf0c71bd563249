"""A work: the tensors of one group in one step, and what is known of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.batch.dispatch_key import DispatchKey
from optgen.runtime.protocols import Group
from optgen.runtime.rule import Rule
from optgen.runtime.torch_private import is_contiguous, is_plain_class

_dtype = attrgetter("dtype")


@dataclass(eq=False, slots=True)
class Batch:
    """One group's tensors of one step; the lists are parallel, and empty between steps."""

    group: Group
    members: list[Tensor]  # the parameters: the keys of the optimizer's state
    params: list[Tensor]  # real, local views of `members`
    grads: list[Tensor]
    states: list[list[Tensor]]  # one list per state of the rule; empty where the state is absent
    steps: list[Any]  # empty if the rule does not count steps
    dicts: list[dict[str, Any]]  # the members' states; empty if they have none
    fresh: dict[str, list[bool]]  # per state that the rule asks it of: this step has created it
    dispatch_keys: list[DispatchKey]
    types: list[list[Any]]  # classes, dtypes, sizes of members and states; none of a part
    real: bool = True  # members and states are what lowerings see
    ordinary: bool = True  # gradients are dense, nothing overrides torch, no parameter comes twice
    shapes: list[Any] = field(default_factory=list)  # of the members; none of a part
    memo: dict[str, Any] = field(default_factory=dict)  # what lowerings know about the types
    parts: list["Batch"] = field(default_factory=list)  # where the tensors need several lowerings
    indices: list[int] = field(
        default_factory=list
    )  # of a part: where its tensors stand in the whole
    _noncontiguous: list[int] | None = None
    _grad_dtypes: set[torch.dtype] | None = None

    @property
    def dispatch_key(self) -> DispatchKey:
        """What the tensors of a part, or of a whole without parts, have in common."""
        return self.dispatch_keys[0] if self.dispatch_keys else DispatchKey()

    @property
    def any_fresh(self) -> bool:
        """Tell whether this step has created a state that the rule asks `fresh` of."""
        return any(map(any, self.fresh.values()))

    @property
    def contiguous(self) -> bool:
        """Tell whether every gradient is."""
        return all(map(is_contiguous, self.grads))

    @property
    def grad_dtypes(self) -> set[torch.dtype]:
        """The dtypes of the gradients."""
        if self._grad_dtypes is None:
            self._grad_dtypes = set(map(_dtype, self.grads))
        return self._grad_dtypes

    @property
    def noncontiguous(self) -> list[int]:
        """The places of parameters of which memory, or that of a state, is not in order."""
        if self._noncontiguous is None:
            lists = columns = [self.params, *filter(None, self.states)]
            if self.dispatch_key.facts:  # only some of such parameters have a state
                columns = [[value for value in column if value is not None] for column in columns]
            flat = self.ordinary and all(all(map(is_contiguous, column)) for column in columns)
            rows = () if flat else enumerate(zip(*lists, strict=True))
            self._noncontiguous = [index for index, row in rows if not all(map(_in_order, row))]
        return self._noncontiguous

    @property
    def needs_forloop(self) -> str:
        """The reason why only the for-loop can take this batch; "" if there is none."""
        if self.group.get("differentiable"):
            return "differentiable"
        if self.dispatch_key.sparse_param:
            return "sparse parameters"
        if self.dispatch_key.subclass:
            return f"tensors of class {self.dispatch_key.subclass}"
        return (
            "a parameter stands in the group more than once" if self.dispatch_key.occurrence else ""
        )

    @property
    def overriding_class(self) -> str:
        """The name of a tensor class that may hold no memory for a kernel; "" if there is none."""
        classes = dict.fromkeys(map(type, self.tensors()))
        return next((found.__name__ for found in classes if not is_plain_class(found)), "")

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that a kernel would look for in memory."""
        return chain(self.params, self.grads, *self.states, self.steps)

    def only_read(self, rule: Rule, scaled: bool) -> Iterator[Tensor]:
        """The tensors that no kernel writes to; where they are scaled, gradients are written."""
        states = zip(rule.states, self.states, strict=True)
        columns = [column for state, column in states if not state.written]
        return chain(*columns, () if scaled else self.grads)

    def is_like(self, other: "Batch") -> bool:
        """Tell whether another batch has tensors of the same types and dispatch keys."""
        return self.types == other.types and self.dispatch_keys == other.dispatch_keys

    def take_tensors(self, other: "Batch") -> None:
        """Take over the tensors of another work of the same types."""
        self.group, self.members, self.params = other.group, other.members, other.params
        self.grads, self.states, self.steps = other.grads, other.states, other.steps
        self.dicts, self.fresh, self.shapes = other.dicts, other.fresh, other.shapes
        self._noncontiguous, self._grad_dtypes = other._noncontiguous, other._grad_dtypes
        self.fill_parts()

    def drop_tensors(self) -> None:
        """Keep no tensor alive until the next step."""
        self.group, self.members, self.params, self.grads = {}, [], [], []
        self.states, self.steps, self.dicts, self.fresh = [], [], [], {}
        self.shapes, self._noncontiguous, self._grad_dtypes = [], None, None

    def split_into_parts(self) -> None:
        """Make a part of every set of tensors that one lowering can take."""
        if not self.dispatch_keys or self.dispatch_keys.count(self.dispatch_keys[0]) == len(
            self.dispatch_keys
        ):
            return
        columns: dict[DispatchKey, list[int]] = {}
        for index, found in enumerate(self.dispatch_keys):
            columns.setdefault(found, []).append(index)
        self.parts = [
            Batch(
                {}, [], [], [], [], [], [], {}, [dispatch_key] * len(indices), [], indices=indices
            )
            for dispatch_key, indices in columns.items()
        ]
        self.fill_parts()

    def fill_parts(self) -> None:
        """Hand this step's tensors and hyperparameters to the parts."""
        for part in self.parts:
            self._fill(part, part.indices)
            part.group = {**self.group, "params": part.members}

    def subset(self, indices: list[int]) -> "Batch":
        """The tensors at some places, in the group of all."""
        part = replace(self, memo={}, parts=[], indices=indices)
        self._fill(part, indices)
        return part

    def _fill(self, part: "Batch", indices: list[int]) -> None:
        def pick(items: list[Any]) -> list[Any]:
            return [items[index] for index in indices] if items else []

        part.members, part.params, part.grads = map(pick, (self.members, self.params, self.grads))
        part.states = [_all_or_none(pick(column)) for column in self.states]
        part.steps, part.dicts = pick(self.steps), pick(self.dicts)
        part.fresh = {key: pick(flags) for key, flags in self.fresh.items()}
        part._noncontiguous = part._grad_dtypes = None


def _in_order(tensor: Tensor | None) -> bool:
    """Tell whether memory has the elements in their order; a sparse tensor has other memory."""
    return tensor is None or tensor.layout is not torch.strided or tensor.is_contiguous()


def _all_or_none(column: list[Any]) -> list[Any]:
    """A part's states: empty where its tensors, which are alike, have none."""
    return [] if column and column[0] is None else column
