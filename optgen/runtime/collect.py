"""Gather what a step works on: parameters with a gradient, gradients, states.

Anybody may exchange anything between two steps: wrappers swap parameters or their storage,
off-loading replaces states, a load everything. So the tensors are fetched anew in every step and
let go after it. What was found out about them is kept with their types, and holds as long as these
are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING

from torch import Tensor

from optgen.runtime import gradients, partitions
from optgen.runtime.assemble import Gradients, States, assemble, visible
from optgen.runtime.checks import check_step, check_types
from optgen.runtime.private import check_fused
from optgen.runtime.sharded.views import aligned, check_summed
from optgen.runtime.state import Created, Group, ensure, store_counts
from optgen.runtime.to_load import Ahead, take_back
from optgen.runtime.undo import Before
from optgen.runtime.work import Work

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer


@dataclass(eq=False, slots=True)
class Survey:
    """What an optimizer's steps know of its tensors."""

    works: dict[int, Work] = field(default_factory=dict)  # by the identity of the group
    created: list[Created] = field(default_factory=list)  # by the step at hand, to be taken back
    ahead: list[Ahead] = field(default_factory=list)  # states for a checkpoint to be loaded into
    before: tuple[Before, list[Ahead]] | None = None  # the step at hand, if it changes the states


def survey(
    optimizer: "GeneratedOptimizer", given: Sequence[Tensor | None] | None = None
) -> list[Work]:
    """Find the work of every group; create the states that are missing.

    The gradients are the parameters' own, or `given` for those of the only group.
    """
    kept = optimizer._survey
    if kept.ahead:
        remember(optimizer)
        take_back(optimizer)
    old, kept.works, kept.created = kept.works, {}, []
    states = States(optimizer.state)
    works = []
    for group in optimizer.param_groups:
        members, found = with_gradient(group, given)
        grads = visible(optimizer, group, aligned(members, found))
        known = old.get(id(group))
        work = assemble(optimizer, group, members, grads, states, known)
        if known is None or known.types != work.types or known.traits != work.traits:
            known = _complete(optimizer, work, grads)
        else:
            known.take(work)
        check_step(optimizer, known)
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


def remember(optimizer: "GeneratedOptimizer") -> None:
    """Note the states as they are before this step changes any, to `undo` what it does to them."""
    kept = optimizer._survey
    if kept.before is None:
        kept.before = Before(optimizer.state), list(kept.ahead)


def undo(optimizer: "GeneratedOptimizer") -> None:
    """Bring back the states of before the step: nothing has been updated."""
    kept = optimizer._survey
    if kept.before is not None:
        before, kept.ahead = kept.before
        before.restore(optimizer.state)
    _let_go(kept)


def release(optimizer: "GeneratedOptimizer", stepped: bool) -> None:
    """Let go of all tensors; if the step did not happen, of the states that would say it did."""
    kept = optimizer._survey
    if optimizer.rule.step == "int":
        for work in kept.works.values():
            store_counts(work.dicts, work.steps)
    for values, key in () if stepped else kept.created:
        values.pop(key, None)
    _let_go(kept)


def _let_go(kept: Survey) -> None:
    """Keep no tensor of the step at hand."""
    kept.created, kept.before = [], None
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
    remember(optimizer)
    created = ensure(rule, optimizer.state, group, work.members, optimizer.defaults)
    optimizer._survey.created += created
    work = assemble(optimizer, group, work.members, grads, States(optimizer.state))
    check_types(rule, work)
    places = {(id(values), key) for values, key in created}
    for key in rule.fresh if created else ():
        work.fresh[key] = [(id(values), key) in places for values in work.dicts]
    work.share()
    return work
