"""Gather what a step works on: parameters with a gradient, gradients, states.

Anybody may exchange anything between two steps: wrappers swap parameters or their storage,
off-loading replaces states, a load everything. So the tensors are fetched anew in every step and
let go after it. What was found out about them is kept with their types, and holds as long as these
are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING

from torch import Tensor

from optgen.runtime import gradients, partitions
from optgen.runtime.assemble import Gradients, States, assemble, visible
from optgen.runtime.private import check_fused, numel
from optgen.runtime.rule import Rule
from optgen.runtime.sharded.views import aligned, any_shared, check_state, check_summed
from optgen.runtime.state import Created, Group, ensure, store_counts
from optgen.runtime.to_load import Ahead, take_back
from optgen.runtime.work import Work

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer

_shape = attrgetter("shape")


@dataclass(eq=False, slots=True)
class Survey:
    """What an optimizer's steps know of its tensors."""

    works: dict[int, Work] = field(default_factory=dict)  # by the identity of the group
    created: list[Created] = field(default_factory=list)  # by the step at hand, to be taken back
    ahead: list[Ahead] = field(default_factory=list)  # states for a checkpoint to be loaded into


def survey(
    optimizer: "GeneratedOptimizer", given: Sequence[Tensor | None] | None = None
) -> list[Work]:
    """Find the work of every group; create the states that are missing.

    The gradients are the parameters' own, or `given` for those of the only group.
    """
    kept = optimizer._survey
    if kept.ahead:
        take_back(optimizer)
    old, kept.works, kept.created = kept.works, {}, []
    states = States(optimizer.state)
    works = []
    for group in optimizer.param_groups:
        members, found = with_gradient(group, given)
        grads = visible(optimizer, group, aligned(members, found))
        known = old.get(id(group))
        work = assemble(optimizer, group, members, grads, states, known)
        gradients.check_sizes(work.params, work.grads)
        if known is None or known.types != work.types or known.traits != work.traits:
            known = _complete(optimizer, work, grads)
        else:
            known.take(work)
        works.append(known)
        for each in (known, *known.parts):
            kept.works[id(each.group)] = each
    return works


def with_gradient(
    group: Group, given: Sequence[Tensor | None] | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters that have a gradient, and the gradients."""
    listed = group["params"]
    found = [param.grad for param in listed] if given is None else given
    grads = [grad for grad in found if grad is not None]
    if len(grads) == len(listed):
        return list(listed), grads
    return list(compress(listed, [grad is not None for grad in found])), grads


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


def _complete(optimizer: "GeneratedOptimizer", work: Work, grads: Gradients) -> Work:
    """Look closely at tensors that are of other types than before; create what is missing."""
    group, rule = work.group, optimizer.rule
    check_summed(work.members)
    gradients.check_whole(optimizer, work.members)
    partitions.check(optimizer, group)
    if group.get("fused"):
        for param in work.members:
            check_fused(param)
    created = ensure(rule, optimizer.state, group, work.members, optimizer.defaults)
    optimizer._survey.created += created
    work = assemble(optimizer, group, work.members, grads, States(optimizer.state))
    _check_shapes(rule, work)
    places = {(id(values), key) for values, key in created}
    for key in rule.fresh if created else ():
        work.fresh[key] = [(id(values), key) in places for values in work.dicts]
    work.share()
    return work


def _check_shapes(rule: Rule, work: Work) -> None:
    """A kernel would write beyond a state that is smaller than its parameter."""
    if any_shared(work.members):
        _check_places(rule, work)
    _check_numbers(rule, work)
    for state, column in zip(rule.states, work.states, strict=True):
        as_always = state.shape == "like" and not rule.facts
        if as_always and list(map(_shape, column)) == list(map(_shape, work.params)):
            continue
        for param, values in zip(work.params, column, strict=False):
            if state.shape == "scalar" or values is None:
                continue
            if list(values.shape) != state.shape_for(param):
                raise RuntimeError(
                    f"{state.key} has the shape {tuple(values.shape)}, but its parameter "
                    f"{tuple(param.shape)}: a state belongs to a parameter of one shape"
                )


def _check_numbers(rule: Rule, work: Work) -> None:
    """A step count or a scalar state that is not one number is torch's error, before it is read."""
    states = zip(rule.states, work.states, strict=True)
    columns = [work.steps, *(column for state, column in states if state.shape == "scalar")]
    for elements in {numel(number) for column in columns for number in column} - {1}:
        raise RuntimeError(f"a Tensor with {elements} elements cannot be converted to Scalar")


def _check_places(rule: Rule, work: Work) -> None:
    """A state that another process has the rest of is none of this process's part."""
    for state in rule.states:
        if state.shape == "like" and state.present(work.group):
            for param, values in zip(work.members, work.dicts, strict=True):
                if state.suits(param):
                    check_state(state.key, param, values[state.key])
