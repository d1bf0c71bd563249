"""Gather what a step works on: parameters with a gradient, gradients, states.

Anybody may exchange anything between two steps: wrappers swap parameters or their storage,
off-loading replaces states, a load everything. So the tensors are fetched anew in every step and
let go after it. What was found out about them is kept with their types, and holds as long as these
are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from optgen.runtime import gradients
from optgen.runtime.gradients import Trait, reals, traits
from optgen.runtime.private import check_fused, is_contiguous, plain
from optgen.runtime.rule import Rule
from optgen.runtime.state import Created, Group, counters, ensure, store_counts, wanted

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer

_dtype = attrgetter("dtype")
_layout = attrgetter("layout")


@dataclass(eq=False, slots=True)
class Work:
    """One group's tensors of one step; the lists are parallel, and empty between steps."""

    group: Group
    members: list[Tensor]  # the parameters: the keys of the optimizer's state
    params: list[Tensor]  # real, local views of `members`
    grads: list[Tensor]
    states: list[list[Tensor]]  # one list per state of the rule; empty where the state is absent
    steps: list[Any]  # empty if the rule does not count steps
    dicts: list[dict[str, Any]]  # the members' states; empty if they have none
    fresh: dict[str, list[bool]]  # per state that the rule asks it of: this step has created it
    traits: list[Trait]
    types: list[list[Any]]  # classes, dtypes, sizes of members and states; none of a part
    facts: dict[str, Any] = field(default_factory=dict)  # what lowerings remember about the types
    parts: list["Work"] = field(default_factory=list)  # where the tensors need several lowerings
    columns: list[int] = field(default_factory=list)  # of a part: its places in the whole

    @property
    def trait(self) -> Trait:
        """What the tensors of a part, or of a whole without parts, have in common."""
        return self.traits[0] if self.traits else Trait()

    @property
    def any_fresh(self) -> bool:
        """Tell whether this step has created a state that the rule asks `fresh` of."""
        return any(map(any, self.fresh.values()))

    @property
    def contiguous(self) -> bool:
        """Tell whether every gradient is."""
        return all(map(is_contiguous, self.grads))

    def take(self, other: "Work") -> None:
        """Take over the tensors of another work of the same types."""
        self.group, self.members, self.params = other.group, other.members, other.params
        self.grads, self.states, self.steps = other.grads, other.states, other.steps
        self.dicts, self.fresh = other.dicts, other.fresh
        _share(self)

    def let_go(self) -> None:
        """Keep no tensor alive until the next step."""
        self.group, self.members, self.params, self.grads = {}, [], [], []
        self.states, self.steps, self.dicts, self.fresh = [], [], [], {}


@dataclass(eq=False, slots=True)
class Survey:
    """What an optimizer's steps know of its tensors."""

    works: dict[int, Work] = field(default_factory=dict)  # by the identity of the group
    created: list[Created] = field(default_factory=list)  # by the step at hand, to be taken back


def survey(
    optimizer: "GeneratedOptimizer", given: Sequence[Tensor | None] | None = None
) -> list[Work]:
    """Find the work of every group; create the states that are missing.

    The gradients are the parameters' own, or `given` for those of the only group.
    """
    kept = optimizer._survey
    old, kept.works, kept.created = kept.works, {}, []
    works = []
    for group in optimizer.param_groups:
        listed = group["params"]
        found = [param.grad for param in listed] if given is None else given
        members = list(compress(listed, [grad is not None for grad in found]))
        grads = visible(optimizer, group, [grad for grad in found if grad is not None])
        work = assemble(optimizer, group, members, grads)
        known = old.get(id(group))
        if known is None or known.types != work.types or known.traits != work.traits:
            known = _complete(optimizer, work)
        else:
            known.take(work)
        works.append(known)
        for each in (known, *known.parts):
            kept.works[id(each.group)] = each
    return works


def collect(optimizer: "GeneratedOptimizer", group: Group) -> Work:
    """Return what this step's survey found for a group: it has run before any lowering does."""
    return optimizer._survey.works[id(group)]


def release(optimizer: "GeneratedOptimizer", stepped: bool) -> None:
    """Let go of all tensors; if the step did not happen, of the states that would say it did."""
    kept = optimizer._survey
    if optimizer.rule.step == "int":
        for work in kept.works.values():
            store_counts(work.dicts, work.steps)
    for values, key in () if stepped else kept.created:
        values.pop(key, None)
    kept.created = []
    for work in kept.works.values():
        work.let_go()
    kept.works = {key: work for key, work in kept.works.items() if not work.columns}


def _complete(optimizer: "GeneratedOptimizer", work: Work) -> Work:
    """Look closely at tensors that are of other types than before; create what is missing."""
    group, rule = work.group, optimizer.rule
    gradients.check_whole(optimizer, work.members)
    if group.get("fused"):
        for param in work.members:
            check_fused(param)
    created = ensure(rule, optimizer.state, group, work.members, optimizer.defaults)
    optimizer._survey.created += created
    work = assemble(optimizer, group, work.members, work.grads)
    _check_shapes(rule, work)
    places = {(id(values), key) for values, key in created}
    for key in rule.fresh if created else ():
        work.fresh[key] = [(id(values), key) in places for values in work.dicts]
    _share(work)
    return work


def _check_shapes(rule: Rule, work: Work) -> None:
    """A kernel would write beyond a state that is smaller than its parameter."""
    for state, column in zip(rule.states, work.states, strict=True):
        for param, values in zip(work.params, column, strict=False):
            if state.shape == "scalar" or values is None:
                continue
            if list(values.shape) != state.shape_for(param):
                raise RuntimeError(
                    f"{state.key} has the shape {tuple(values.shape)}, but its parameter "
                    f"{tuple(param.shape)}: a state belongs to a parameter of one shape"
                )


def visible(optimizer: "GeneratedOptimizer", group: Group, grads: list[Tensor]) -> list[Tensor]:
    """Check the gradients, and return them as lowerings see them."""
    rule = optimizer.rule
    if rule.gradient != "sparse_only" and set(map(_layout, grads)) <= {torch.strided}:
        return reals(grads)
    whole = any(not state.rows and state.present(group) for state in rule.states)
    seen = []
    for grad in grads:
        if grad.is_sparse or rule.gradient == "sparse_only":
            gradients.check(optimizer, group, grad)
        scalar = grad.is_sparse and grad.sparse_dim() == 0
        seen.append(grad.to_dense() if grad.is_sparse and (whole or scalar) else grad)
    return reals(seen)


def assemble(
    optimizer: "GeneratedOptimizer", group: Group, members: list[Tensor], grads: list[Tensor]
) -> Work:
    """Make the work of given parameters and gradients from the states that there are."""
    rule = optimizer.rule
    keys = wanted(rule, group)
    counted = [] if rule.step is None else ["step"]
    dicts = _dicts(optimizer, members) if keys or counted else []
    try:
        raw = {key: [values[key] for values in dicts] for key in counted}
        raw |= _columns(rule, keys, members, dicts)
        seen = raw if not rule.facts else {key: _given(column) for key, column in raw.items()}
        looked_at = [*keys, *(counted if rule.step == "tensor" else [])]
        types = _types(rule, [members, *map(seen.__getitem__, looked_at)])
        sized = [
            seen[state.key]
            for state in rule.states
            if state.shape != "scalar" and state.key in seen
        ]
        types += [list(map(Tensor.numel, column)) for column in (members, *sized)]
        types.append(["complete", *keys])
    except (KeyError, AttributeError):  # not created yet, or None in an old checkpoint
        raw, types = {}, _types(rule, [members])
    states = [raw.get(state.key, []) for state in rule.states]
    real = all(map(_is_real, set(chain.from_iterable(types))))
    params = members if real else reals(members)
    work = Work(
        group=group,
        members=members,
        params=list(params),
        grads=grads,
        states=states if real else [_reals_of_some(column) for column in states],
        steps=counters(dicts) if rule.step == "int" and raw else raw.get("step", []),
        dicts=dicts,
        fresh={key: [False] * len(members) for key in rule.fresh},
        traits=traits(rule, members, params, grads),
        types=types,
    )
    _divide(work)
    return work


def _columns(
    rule: Rule, keys: list[str], members: list[Tensor], dicts: list[dict[str, Any]]
) -> dict[str, list[Any]]:
    """The states by key; None for a parameter whose shape it does not suit, if only some do."""
    if not rule.facts:
        return {key: [values[key] for values in dicts] for key in keys}
    columns = {}
    for state in rule.states:
        if state.key in keys:
            suits = list(map(state.suits, members))
            pairs = zip(dicts, suits, strict=True)
            column = [values[state.key] if suited else None for values, suited in pairs]
            if suits != [value is not None for value in column]:
                raise KeyError(state.key)  # None in an old checkpoint
            columns[state.key] = column if any(suits) else []
    return columns


def _given(column: list[Any]) -> list[Any]:
    return [value for value in column if value is not None]


def _reals_of_some(column: list[Any]) -> list[Any]:
    """The states as a lowering sees them, None where a parameter has none."""
    found = iter(reals(_given(column)))
    return [None if value is None else next(found) for value in column]


def _dicts(optimizer: "GeneratedOptimizer", members: list[Tensor]) -> list[dict[str, Any]]:
    state = optimizer.state
    if len(state) == len(members) and all(map(is_, state, members)):  # no tensor is hashed
        return list(state.values())
    return [state.get(param, {}) for param in members]


def _types(rule: Rule, columns: list[list[Tensor]]) -> list[list[Any]]:
    # torch keeps SGD's momentum as sparse as its gradients; anything else is never sparse.
    asked = (type, _dtype) if rule.gradient == "dense" else (type, _dtype, _layout)
    types: list[list[Any]] = [list(map(of, column)) for of in asked for column in columns]
    return [*types, list(map(Tensor.get_device, columns[0]))]


def _is_real(kind: Any) -> bool:
    """Tell whether tensors of this class, or this dtype, are what lowerings see."""
    if isinstance(kind, torch.dtype):
        return not kind.is_complex
    return not isinstance(kind, type) or plain(kind)


def _divide(work: Work) -> None:
    """Make a part of every set of tensors that one lowering can take."""
    if not work.traits or work.traits.count(work.traits[0]) == len(work.traits):
        return
    columns: dict[Trait, list[int]] = {}
    for index, found in enumerate(work.traits):
        columns.setdefault(found, []).append(index)
    work.parts = [
        Work({}, [], [], [], [], [], [], {}, [trait] * len(places), [], columns=places)
        for trait, places in columns.items()
    ]
    _share(work)


def _share(work: Work) -> None:
    """Hand this step's tensors and hyperparameters to the parts."""
    for part in work.parts:

        def pick(items: list[Any], places: list[int] = part.columns) -> list[Any]:
            return [items[place] for place in places] if items else []

        part.members, part.params, part.grads = map(pick, (work.members, work.params, work.grads))
        part.states = [_all_or_none(pick(column)) for column in work.states]
        part.steps, part.dicts = pick(work.steps), pick(work.dicts)
        part.fresh = {key: pick(flags) for key, flags in work.fresh.items()}
        part.group = {**work.group, "params": part.members}


def _all_or_none(column: list[Any]) -> list[Any]:
    """A part's states: empty where its tensors, which are alike, have none."""
    return [] if column and column[0] is None else column
