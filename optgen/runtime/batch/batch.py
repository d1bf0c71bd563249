"""A batch: the tensors of one group in one step, and what decides which lowerings can take it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from optgen.contract.states import fact_holds
from optgen.runtime.rule import Group, OptimizerLike, Rule
from optgen.runtime.tensors.dtensor import all_plain
from optgen.runtime.tensors.layout import streams_to_copy
from optgen.runtime.tensors.quantized import QuantizedTensor
from optgen.runtime.tensors.sharding import Sharding, sharding_of
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
    in_pieces: bool = False  # whether `members` are pieces of the group's parameters
    # Of a batch in pieces: the dicts of the pieces' parameters; `dicts` are the pieces' own.
    whole_dicts: list[dict[str, Any]] = field(default_factory=list)
    memo: dict[str, Any] = field(default_factory=dict)  # backends' cache, valid for this signature
    parts: list[Batch] = field(default_factory=list)  # one per dispatch key, if there are several
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
    def stored_dicts(self) -> list[dict[str, Any]]:
        """Return the state dicts in the optimizer; pieces of one parameter have the same one."""
        return self.whole_dicts or self.dicts

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
        """Tell whether a state holds codes."""
        return QuantizedTensor in map(type, chain(*self.states))

    def tensors(self) -> Iterator[Tensor]:
        """Return every tensor that a kernel reads or writes."""
        return chain(self.params, self.grads, *self.states, self.step_counts)

    def is_like(self, other: Batch) -> bool:
        """Tell whether another batch has tensors of the same signature and dispatch keys."""
        return self.signature == other.signature and self.dispatch_keys == other.dispatch_keys

    def take_tensors(self, other: Batch) -> None:
        """Take over the tensors of another batch of the same signature."""
        self.group, self.members, self.params = other.group, other.members, other.params
        self.grads, self.states, self.step_counts = other.grads, other.states, other.step_counts
        self.dicts, self.fresh, self.shapes = other.dicts, other.fresh, other.shapes
        self.meta_views, self.view_copies = other.meta_views, other.view_copies
        self.whole_dicts = other.whole_dicts
        self._noncontiguous_indices, self._grad_dtypes = (
            other._noncontiguous_indices,
            other._grad_dtypes,
        )
        self.fill_parts()

    def drop_tensors(self) -> None:
        """Drop all tensors, so that none stays alive until the next step."""
        self.group, self.members, self.params, self.grads = {}, [], [], []
        self.states, self.step_counts, self.dicts, self.fresh = [], [], [], {}
        self.meta_views, self.view_copies, self.whole_dicts = [], [], []
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

    def subset(self, indices: list[int]) -> Batch:
        """Return a batch of the tensors at these indices, in the same group."""
        part = replace(self, memo={}, parts=[], indices=indices)
        self._fill_part(part, indices)
        return part

    def _fill_part(self, part: Batch, indices: list[int]) -> None:
        """Give a part this batch's tensors at these indices."""

        def pick(items: list[Any]) -> list[Any]:
            return [items[index] for index in indices] if items else []

        part.members, part.params, part.grads = map(pick, (self.members, self.params, self.grads))
        part.states = [_all_or_none(pick(column)) for column in self.states]
        part.step_counts, part.dicts = pick(self.step_counts), pick(self.dicts)
        part.in_pieces = self.in_pieces
        part.meta_views, part.whole_dicts = pick(self.meta_views), pick(self.whole_dicts)
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


OPTIONS = ("foreach", "fused", "capturable", "differentiable")
"""The group options that decide the lowering, besides the tensors and the dtype of lr."""


class DispatchKey(NamedTuple):
    """The properties that decide which lowerings can take a tensor.

    The tensors of one call have equal keys.
    """

    device: str = "cpu"
    sparse_grad: bool = False  # the gradient is sparse: it names some rows of the parameter
    sparse_param: bool = False
    subclass: str = ""  # the name of a tensor class that overrides operations
    occurrence: int = 0  # how often the group lists the same parameter before this entry
    facts: tuple[bool, ...] = ()  # the values of the rule's shape predicates
    sharding: Sharding | None = None  # only where the rule needs whole parameters
    input_flags: tuple[tuple[str, bool], ...] = ()  # (flag, its value) for each optional input


@cache
def _plain_key(device: str) -> DispatchKey:
    return DispatchKey(device)


def dispatch_keys(
    rule: Rule,
    members: list[Tensor],
    params: list[Tensor],
    grads: list[Tensor],
    ordinary: bool,
    group: Mapping[str, Any],
    seen_params: list[Tensor] | None = None,
) -> list[DispatchKey]:
    """Return the dispatch key of every parameter and its gradient.

    `members` are the group's parameters, and `params` their real, local views. If the group has a
    view, `seen_params` are the members in the shapes that the rule sees. If `ordinary`, the
    gradients are dense and of plain classes, and the parameters are distinct.
    """
    keys = (
        [_plain_key(param.device.type) for param in params]
        if ordinary and all_plain(params)
        else _keys_one_by_one(members, params, grads)
    )
    if not rule.elementwise and not all_plain(members):
        pairs = zip(keys, map(sharding_of, members), strict=True)
        keys = [key._replace(sharding=sharding) for key, sharding in pairs]
    if not rule.facts:
        return keys
    shapes = [param.shape for param in seen_params or members]
    facts_by_param = (tuple(fact_holds(f, shape, group) for f in rule.facts) for shape in shapes)
    pairs_by_param = list(zip(keys, facts_by_param, strict=True))
    # Make each key once: thousands of parameters have few different pairs.
    keys_by_pair = {(key, facts): key._replace(facts=facts) for key, facts in set(pairs_by_param)}
    return [keys_by_pair[pair] for pair in pairs_by_param]


def _keys_one_by_one(
    members: list[Tensor], params: list[Tensor], grads: list[Tensor]
) -> list[DispatchKey]:
    """Return the dispatch keys of tensors that may be sparse, of a subclass, or listed twice."""
    occurrences: dict[int, int] = {}
    keys = []
    for member, param, grad in zip(members, params, grads, strict=True):
        occurrence = occurrences[id(member)] = occurrences.get(id(member), -1) + 1
        subclass = next(
            (type(t).__name__ for t in (param, grad) if not is_plain_class(type(t))), ""
        )
        sparse_param = param.layout is not torch.strided
        sparse_grad = grad.layout is not torch.strided and not sparse_param
        device = param.device.type
        keys.append(DispatchKey(device, sparse_grad, sparse_param, subclass, occurrence))
    return keys


def dtype_or_class(value: object) -> object:
    """Return the dtype of a tensor hyperparameter, or the class of a number.

    The dtype of a tensor learning rate can decide the lowering: torch computes in that dtype.
    """
    return getattr(value, "dtype", value.__class__)


def codes_in_other_order(rule: Rule, batch: Batch) -> bool:
    """Tell whether a quantized state lies in another order of memory than a kernel goes over.

    A kernel goes over memory in the parameter's order, or row by row if the rule draws random
    numbers. It cannot use a reordered copy of the state, because blocks of codes follow the state's
    order. A parameter may change its order between steps.
    """
    state_index = 1  # in the pair (param, state)
    return bool(rule.quantized_states) and any(
        state_index in streams_to_copy((param, state), by_matrix=rule.draws)
        for column in batch.states
        for param, state in zip(batch.params, column, strict=False)
        if type(state) is QuantizedTensor
    )


def has_pieces(optimizer: OptimizerLike) -> bool:
    """Tell whether a group's view cuts parameters into pieces, which no cached step reads."""
    rule = optimizer.rule
    return any(rule.pieces(group) is not None for group in optimizer.param_groups)


def codes_obstacle(rule: Rule, batch: Batch, lowering: str) -> str:
    """Return why a kernel of a fused lowering cannot go over a batch's codes; "" if it can."""
    if reason := rule.why_codes_are_not_read(lowering):
        return reason
    if codes_in_other_order(rule, batch):
        return "quantized states in another order of memory than the kernel goes over"
    return ""


def why_forloop_only(batch: Batch) -> str:
    """Return the reason why only the for-loop can take a batch; "" if there is none."""
    if batch.group.get("differentiable"):
        return "differentiable"
    if batch.dispatch_key.sparse_param:
        return "sparse parameters"
    if batch.dispatch_key.subclass:
        return f"tensors of class {batch.dispatch_key.subclass}"
    is_repeated = batch.dispatch_key.occurrence > 0
    return "a parameter stands in the group more than once" if is_repeated else ""
