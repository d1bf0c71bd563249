"""A batch: the tensors of one group in one step, and what is known about them."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from optgen.runtime.batch.dispatch_key import DispatchKey
from optgen.runtime.protocols import Group
from optgen.runtime.rule import Rule
from optgen.runtime.tensors.quantized import QuantizedTensor
from optgen.runtime.torch_private import is_contiguous, is_plain_class

_dtype = attrgetter("dtype")


class ViewCopy(NamedTuple):
    """A copy in the shape of a group's view, which a lowering updates instead of the original."""

    param_index: int  # index of the tensor's parameter in the whole batch
    original: Tensor
    copy: Tensor
    is_gradient: bool = False

    def write_back(self) -> None:
        """Write the updated copy to the original."""
        self.original.copy_(self.copy.view(self.original.shape))


@dataclass(eq=False, slots=True)
class Batch:
    """One group's tensors in one step; the lists are parallel, and empty between steps."""

    group: Group
    members: list[Tensor]  # the parameters: the keys of the optimizer's state
    params: list[Tensor]  # real, local views of `members`, in the shape of the group's view
    grads: list[Tensor]
    # One list per state of the rule; empty where the state is absent.
    states: list[list[Tensor]] = field(default_factory=list)
    step_counts: list[Any] = field(default_factory=list)  # empty if the rule has none
    # The members' state dicts; empty if the rule has neither states nor a step count.
    dicts: list[dict[str, Any]] = field(default_factory=list)
    # For each fresh state of the rule, by key: whether this step created it, for each parameter.
    fresh: dict[str, list[bool]] = field(default_factory=dict)
    dispatch_keys: list[DispatchKey] = field(default_factory=list)
    # Classes, dtypes and sizes of members and states, lists to compare; empty in a part.
    signature: list[list[Any]] = field(default_factory=list)
    # Whether lowerings take members and states as they are, not real or local views of them.
    needs_no_views: bool = True
    ordinary: bool = True  # gradients are dense, no class overrides torch, no parameter repeats
    shapes: list[Any] = field(default_factory=list)  # of the members; empty in a part
    # Meta tensors with the shapes of whole parameters in the group's view; empty without a view.
    meta_views: list[Tensor] = field(default_factory=list)
    view_copies: list[ViewCopy] = field(default_factory=list)
    memo: dict[str, Any] = field(default_factory=dict)  # backends' cache, valid for this signature
    parts: list["Batch"] = field(default_factory=list)  # one per dispatch key, if there are several
    # Of a part: the indices of its tensors in the whole batch.
    indices: list[int] = field(default_factory=list)
    group_id: int = 0  # the identity of the whole group, in a part too
    _noncontiguous_indices: list[int] | None = None
    _grad_dtypes: set[torch.dtype] | None = None

    @property
    def dispatch_key(self) -> DispatchKey:
        """Return the dispatch key that all tensors of a part, or of a batch without parts, have."""
        return self.dispatch_keys[0] if self.dispatch_keys else DispatchKey()

    @property
    def seen_params(self) -> list[Tensor]:
        """Return whole parameters in the shapes that the rule sees; with a view, meta tensors."""
        return self.meta_views or self.members

    @property
    def any_fresh(self) -> bool:
        """Tell whether this step has created one of the rule's `fresh` states."""
        return any(map(any, self.fresh.values()))

    @property
    def grad_dtypes(self) -> set[torch.dtype]:
        """Return the dtypes of the gradients."""
        if self._grad_dtypes is None:
            self._grad_dtypes = set(map(_dtype, self.grads))
        return self._grad_dtypes

    @property
    def noncontiguous_indices(self) -> list[int]:
        """Return the indices of parameters that are noncontiguous or have a noncontiguous state."""
        if self._noncontiguous_indices is None:
            all_columns = columns = [self.params, *filter(None, self.states)]
            if self.dispatch_key.facts or self.dispatch_key.input_flags:  # a state may be None
                columns = [[value for value in column if value is not None] for column in columns]
            all_contiguous = self.ordinary and all(
                all(map(is_contiguous, column)) for column in columns
            )
            pairs = () if all_contiguous else enumerate(zip(*all_columns, strict=True))
            self._noncontiguous_indices = [
                index for index, tensors in pairs if not all(map(_counts_as_contiguous, tensors))
            ]
        return self._noncontiguous_indices

    @property
    def overriding_class(self) -> str:
        """Return the name of a tensor class whose memory no kernel can use; "" if there is none."""
        classes = dict.fromkeys(map(type, self.tensors()))
        overriding = (each for each in classes if not is_plain_class(each))
        return next((each.__name__ for each in overriding if each is not QuantizedTensor), "")

    @property
    def has_codes(self) -> bool:
        """Tell whether a state holds codes of 8 bits."""
        return QuantizedTensor in map(type, chain(*self.states))

    def tensors(self) -> Iterator[Tensor]:
        """Return every tensor that a kernel reads or writes."""
        return chain(self.params, self.grads, *self.states, self.step_counts)

    def read_only_tensors(self, rule: Rule, unscales: bool) -> Iterator[Tensor]:
        """Return the tensors that a kernel only reads; if it `unscales`, it writes gradients."""
        states = zip(rule.states, self.states, strict=True)
        columns = [column for state, column in states if not state.written]
        return chain(*columns, () if unscales or rule.zero_grad else self.grads)

    def is_like(self, other: "Batch") -> bool:
        """Tell whether another batch has tensors of the same signature and dispatch keys."""
        return self.signature == other.signature and self.dispatch_keys == other.dispatch_keys

    def take_tensors(self, other: "Batch") -> None:
        """Take over the tensors of another batch of the same signature."""
        self.group, self.members, self.params = other.group, other.members, other.params
        self.grads, self.states, self.step_counts = other.grads, other.states, other.step_counts
        self.dicts, self.fresh, self.shapes = other.dicts, other.fresh, other.shapes
        self.meta_views, self.view_copies = other.meta_views, other.view_copies
        self._noncontiguous_indices, self._grad_dtypes = (
            other._noncontiguous_indices,
            other._grad_dtypes,
        )
        self.fill_parts()

    def drop_tensors(self) -> None:
        """Drop all tensors, so that none stays alive until the next step."""
        self.group, self.members, self.params, self.grads = {}, [], [], []
        self.states, self.step_counts, self.dicts, self.fresh = [], [], [], {}
        self.meta_views, self.view_copies = [], []
        self.shapes, self._noncontiguous_indices, self._grad_dtypes = [], None, None

    def split_into_parts(self) -> None:
        """Make a part for each dispatch key, if there are several or if a key sets flags."""
        keys = self.dispatch_keys
        if not keys or (keys.count(keys[0]) == len(keys) and not keys[0].input_flags):
            return
        indices_by_key: dict[DispatchKey, list[int]] = {}
        for index, key in enumerate(keys):
            indices_by_key.setdefault(key, []).append(index)
        self.parts = [
            Batch(
                group={},
                members=[],
                params=[],
                grads=[],
                dispatch_keys=[key] * len(indices),
                indices=indices,
                group_id=self.group_id,
            )
            for key, indices in indices_by_key.items()
        ]
        self.fill_parts()

    def fill_parts(self) -> None:
        """Give this step's tensors and hyperparameters to the parts."""
        for part in self.parts:
            self._fill_part(part, part.indices)
            part.group = {
                **self.group,
                **dict(part.dispatch_key.input_flags),
                "params": part.members,
            }

    def subset(self, indices: list[int]) -> "Batch":
        """Return a batch of the tensors at these indices, in the same group."""
        part = replace(self, memo={}, parts=[], indices=indices)
        self._fill_part(part, indices)
        return part

    def _fill_part(self, part: "Batch", indices: list[int]) -> None:
        """Give a part this batch's tensors at these indices."""

        def pick(items: list[Any]) -> list[Any]:
            return [items[index] for index in indices] if items else []

        part.members, part.params, part.grads = map(pick, (self.members, self.params, self.grads))
        part.states = [_all_or_none(pick(column)) for column in self.states]
        part.step_counts, part.dicts = pick(self.step_counts), pick(self.dicts)
        part.meta_views = pick(self.meta_views)
        picked = set(indices) if self.view_copies else ()
        part.view_copies = [each for each in self.view_copies if each.param_index in picked]
        part.fresh = {key: pick(flags) for key, flags in self.fresh.items()}
        part._noncontiguous_indices = part._grad_dtypes = None


def _counts_as_contiguous(tensor: Tensor | None) -> bool:
    """Tell whether a tensor is contiguous; None and sparse tensors count as contiguous."""
    return tensor is None or tensor.layout is not torch.strided or tensor.is_contiguous()


def _all_or_none(column: list[Any]) -> list[Any]:
    """Return a part's column of a state; [] if it holds None.

    All parameters of a part have the same facts: either all have the state, or none has it.
    """
    return [] if column and column[0] is None else column
