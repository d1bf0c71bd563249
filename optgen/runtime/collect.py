"""Gather what a step works on: parameters with a gradient, gradients, states.

Between two steps usually only the gradients are new tensors. A `Work` is therefore kept, and
reused as long as parameters and states are the identical objects; anybody may exchange them at any
time (wrappers swap parameters, off-loading replaces states), so their identities are looked at in
every step.
"""

from dataclasses import dataclass, field
from itertools import compress
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any

from torch import Tensor

from optgen.runtime import gradients
from optgen.runtime.gradients import Trait, reals, traits
from optgen.runtime.private import check_fused, is_contiguous
from optgen.runtime.rule import Rule
from optgen.runtime.state import Group, ensure, wanted

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer


@dataclass(eq=False, slots=True)
class Work:
    """One group's tensors of one step; the lists are parallel."""

    group: Group
    params: list[Tensor]  # real, local views of `members`
    grads: list[Tensor]  # a new list in each step
    states: list[list[Tensor]]  # one list per state of the rule; empty where the state is absent
    steps: list[Any]  # empty if the rule does not count steps
    fresh: dict[str, list[bool]]  # per state that the rule asks it of: it has not been stepped yet
    any_fresh: bool
    contiguous: bool  # every gradient is
    members: list[Tensor]  # the parameters: the keys of the optimizer's state
    dicts: list[dict[str, Any]]  # the members' states; empty if they have none
    traits: list[Trait]
    facts: dict[str, Any] = field(default_factory=dict)  # what lowerings remember about this work
    parts: list["Work"] = field(default_factory=list)  # where the tensors need several lowerings
    columns: list[int] = field(default_factory=list)  # of a part: its places in the whole
    proof: "Proof | None" = None  # of a whole: what shows that it is still true

    @property
    def trait(self) -> Trait:
        """What the tensors of a part, or of a whole without parts, have in common."""
        return self.traits[0] if self.traits else Trait()


@dataclass(eq=False, slots=True)
class Proof:
    """What a work was made from: while all of it is the same, so is the work."""

    listed: list[Tensor]  # the group's parameters, with and without a gradient
    present: list[bool]  # which of them have one
    kinds: set[type]  # types of the gradients, NoneType among them
    direct: bool  # parameters and gradients are what a lowering sees, no views of them
    keys: list[str]  # the states that belong to the group
    held: list[tuple[str, list[Any]]]  # these states' values, as they stand in the state


@dataclass(eq=False, slots=True)
class Survey:
    """The works of one optimizer in the step at hand, and the states they were made from."""

    works: dict[int, Work] = field(default_factory=dict)  # by the identity of the group
    entries: list[Any] = field(default_factory=list)


def survey(optimizer: "GeneratedOptimizer") -> list[Work]:
    """Bring the work of every group up to date; create the states that are missing."""
    kept = optimizer._survey
    entries = optimizer.state.values()
    same = len(entries) == len(kept.entries) and all(map(is_, entries, kept.entries))
    old, kept.works = kept.works if same else {}, {}
    works = []
    for group in optimizer.param_groups:
        work = old.get(id(group))
        if work is None or work.group is not group or not _refresh(optimizer, work):
            work = _build(optimizer, group)
        works.append(work)
        for each in (work, *work.parts):
            kept.works[id(each.group)] = each
    kept.entries = list(optimizer.state.values())
    return works


def collect(optimizer: "GeneratedOptimizer", group: Group) -> Work:
    """Return what this step's survey found for a group: it has run before any lowering does."""
    return optimizer._survey.works[id(group)]


def settle(optimizer: "GeneratedOptimizer", work: Work) -> None:
    """Note that a step has been taken with states that were fresh."""
    for index, state in enumerate(optimizer.rule.states):
        if state.key in work.fresh:
            for values in work.dicts if work.states[index] else ():
                optimizer._unstepped.pop(id(values[state.key]), None)
    for each in (work, *work.parts):
        each.any_fresh = False
        each.fresh = {key: [False] * len(each.params) for key in each.fresh}


def release(works: list[Work]) -> None:
    """Let go of the gradients: their memory is not to outlive zero_grad."""
    for work in works:
        for each in (work, *work.parts):
            each.grads = []


def _refresh(optimizer: "GeneratedOptimizer", work: Work) -> bool:
    """Take the new gradients into a work, if nothing else about it has changed."""
    proof, group = work.proof, work.group
    assert proof is not None
    if group.get("differentiable"):
        return False  # a view belongs to the graph of the step that made it
    listed = group["params"]
    if len(listed) != len(proof.listed) or not all(map(is_, listed, proof.listed)):
        return False
    if wanted(optimizer.rule, group) != proof.keys or not _states_are_held(work, proof):
        return False
    grads = [param.grad for param in listed]
    if set(map(type, grads)) != proof.kinds:
        return False
    if type(None) in proof.kinds:
        if [grad is not None for grad in grads] != proof.present:
            return False
        grads = [grad for grad in grads if grad is not None]
    contiguous = proof.direct and all(map(is_contiguous, grads))  # a sparse one is not
    if not contiguous:
        grads = visible(optimizer, group, grads)
        if traits(work.members, work.params, grads) != work.traits:
            return False
        contiguous = all(map(is_contiguous, grads))
    work.grads, work.contiguous = grads, contiguous
    _share(work)
    return True


def _states_are_held(work: Work, proof: Proof) -> bool:
    try:
        return all(
            all(map(is_, map(itemgetter(key), work.dicts), values)) for key, values in proof.held
        )
    except KeyError:
        return False


def _build(optimizer: "GeneratedOptimizer", group: Group) -> Work:
    listed = list(group["params"])
    found = [param.grad for param in listed]
    present = [grad is not None for grad in found]
    members = list(compress(listed, present))
    grads = visible(optimizer, group, [grad for grad in found if grad is not None])
    if group.get("fused"):
        for param in members:
            check_fused(param)
    for made in ensure(optimizer.rule, optimizer.state, group, members):
        optimizer._unstepped[id(made)] = made
    work = assemble(optimizer, group, members, grads)
    seen, given = [*work.params, *grads], [*members, *compress(found, present)]
    work.proof = Proof(
        listed=listed,
        present=present,
        kinds=set(map(type, found)),
        direct=all(map(is_, seen, given)),
        keys=wanted(optimizer.rule, group),
        held=_held(optimizer.rule, work),
    )
    return work


def _held(rule: Rule, work: Work) -> list[tuple[str, list[Any]]]:
    """The states that a work was made from; the work's own lists where it has no views of them.

    A lowering that moves a state puts it into both, and the work stays true.
    """
    # A count in Python ints is another object after each step: its identity proves nothing.
    held = [("step", work.steps)] if rule.step == "tensor" else []
    for state, column in zip(rule.states, work.states, strict=True):
        if column:
            values = [entry[state.key] for entry in work.dicts]
            held.append((state.key, column if all(map(is_, values, column)) else values))
    return held


def visible(optimizer: "GeneratedOptimizer", group: Group, grads: list[Tensor]) -> list[Tensor]:
    """Check the gradients, and return them as lowerings see them."""
    rule, fused = optimizer.rule, bool(group.get("fused"))
    dense = any(state.shape == "like" and state.present(group) for state in rule.states)
    seen = []
    for grad in grads:
        if grad.is_sparse or rule.gradient == "sparse_only":
            gradients.check(optimizer, grad, fused)
        # A state decays as a whole: with one, a sparse gradient is worth no more than a dense one.
        seen.append(grad.to_dense() if dense and grad.is_sparse else grad)
    return reals(seen)


def assemble(
    optimizer: "GeneratedOptimizer", group: Group, members: list[Tensor], grads: list[Tensor]
) -> Work:
    """Make the work of given parameters and gradients from the states that there are."""
    rule = optimizer.rule
    keys = wanted(rule, group)
    stateful = bool(keys) or rule.step is not None
    dicts = [optimizer.state.get(param, {}) for param in members] if stateful else []
    try:
        raw = {key: [values[key] for values in dicts] for key in keys}
    except KeyError:  # an explanation asks before the first step
        raw = {}
    states = [reals(raw.get(state.key, [])) for state in rule.states]
    params = reals(members)
    fresh = {
        key: [id(value) in optimizer._unstepped for value in raw[key]]
        if key in raw
        else [False] * len(members)
        for key in rule.fresh
    }
    work = Work(
        group=group,
        params=params,
        grads=grads,
        states=states,
        steps=[values["step"] for values in dicts if "step" in values] if rule.step else [],
        fresh=fresh,
        any_fresh=any(map(any, fresh.values())),
        contiguous=all(map(is_contiguous, grads)),
        members=members,
        dicts=dicts,
        traits=traits(members, params, grads),
    )
    columns: dict[Trait, list[int]] = {}
    for index, found in enumerate(work.traits):
        columns.setdefault(found, []).append(index)
    if len(columns) > 1:
        work.parts = [_part(work, places) for places in columns.values()]
        _share(work)
    return work


def _part(work: Work, columns: list[int]) -> Work:
    def pick(items: list[Any]) -> list[Any]:
        return [items[column] for column in columns] if items else []

    return Work(
        group={},
        params=pick(work.params),
        grads=[],
        states=[pick(values) for values in work.states],
        steps=pick(work.steps),
        fresh={key: pick(values) for key, values in work.fresh.items()},
        any_fresh=work.any_fresh,
        contiguous=True,
        members=pick(work.members),
        dicts=pick(work.dicts),
        traits=pick(work.traits),
        columns=columns,
    )


def _share(work: Work) -> None:
    """Hand this step's gradients and hyperparameters to the parts."""
    for part in work.parts:
        part.group.update(work.group)
        part.group["params"] = part.members
        part.grads = [work.grads[column] for column in part.columns]
        part.contiguous = work.contiguous
